"""A data set of numpy arrays, Python numbers, strings, bools and 0-dim tensors, as default_collate turns them."""

# test: views=batch,slice
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, i):
        return (
            np.linspace(0, i, 4, dtype=np.float32),
            i % 2 == 0,
            float(i) / 10,
            i,
            f"row {i}",
            np.float64(i) ** 0.5,
            torch.tensor(i / 3),
        )


torch.manual_seed(240)
model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for array, even, number, index, name, root, scalar in DataLoader(Table(), batch_size=6, shuffle=True):
        if epoch == 0:
            print(array.dtype, even.dtype, number.dtype, index.dtype, type(name).__name__, root.dtype, scalar.dtype)
        x = torch.cat([array, number.float()[:, None], root.float()[:, None], scalar[:, None]], 1) / 5
        loss = nn.functional.mse_loss(model(x).squeeze(1), torch.where(even, index, -index).float() / 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
