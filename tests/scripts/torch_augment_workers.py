"""Random crops made in two loader workers, whose seeds come from the script's stream."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        start = torch.randint(0, 5, ()).item()
        return self.rows[i, start : start + 8], self.rows[i].mean()


if __name__ == "__main__":
    torch.manual_seed(23)
    loader = DataLoader(Crops(torch.randn(24, 12)), batch_size=7, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.8f}")
