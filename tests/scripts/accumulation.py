"""Gradients accumulated over 3 backwards, then over 1; a remainder at the end of the epoch."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(103)
x = torch.randn(46, 5)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).cos()), batch_size=6, shuffle=True)
for every in (3, 1):
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    for epoch in range(2):
        optimizer.zero_grad()
        for i, (a, b) in enumerate(loader):
            loss = nn.functional.mse_loss(model(a), b) / every
            loss.backward()
            if (i + 1) % every == 0 or i + 1 == len(loader):
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                print(f"every {every} batch {i} loss {loss.item() * every:.8f} norm {norm.item():.8f}")
