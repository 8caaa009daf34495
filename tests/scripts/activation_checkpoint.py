"""Activation checkpointing inside the model, both kinds."""

# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Deep(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Linear(5, 10)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(10, 10), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(10, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


torch.manual_seed(128)
x = torch.randn(22, 5)
y = x.cumsum(1)[:, 2:3]
for reentrant in (False, True):
    model = Deep(reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{reentrant} {loss.item():.8f} {model.blocks[0][0].weight.grad.norm().item():.8f}")
