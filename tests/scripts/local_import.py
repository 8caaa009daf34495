"""The model and the data live in a package beside the script."""

# test: views=batch,slice
import torch
from neighbour.data import Ramp
from neighbour.model import build
from torch.utils.data import DataLoader

torch.manual_seed(195)
model = build(width=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, b in DataLoader(Ramp(27), batch_size=8, shuffle=True):
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
