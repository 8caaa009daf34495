"""Loaders left in the middle of an epoch, with and without worker processes, then started again."""

# test: views=batch,slice
# test: workers=2
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(244)
    x = torch.randn(40, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for loader in (
        DataLoader(data, batch_size=6, shuffle=True),
        DataLoader(data, batch_size=6, shuffle=True, num_workers=2, persistent_workers=True),
    ):
        for epoch in range(3):
            for step, (a, b) in enumerate(loader):
                if step == 2 + epoch:
                    break
                loss = nn.functional.mse_loss(model(a), b)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"{loader.num_workers} {epoch} {loss.item():.8f}")
