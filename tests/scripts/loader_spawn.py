"""Loader workers started by spawn: they import the script again and know nothing of ours."""

# test: slow=imports torch in every loader worker
# test: workers=2
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(323)
    x = torch.randn(20, 4)
    loader = DataLoader(
        TensorDataset(x, x.sum(1, keepdim=True)),
        batch_size=6,
        shuffle=True,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
