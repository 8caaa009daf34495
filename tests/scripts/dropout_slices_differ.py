"""All rows are equal, so outputs differ only by their masks: masks must differ between rows, slices and calls."""

import torch
from torch import nn

torch.manual_seed(202)
model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 1))
x = torch.ones(12, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
before = None
for step in range(4):
    out = model(x)
    loss = (out - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("rows differ:", len(set(out.flatten().tolist())) == 12)
    if before is not None:
        print("calls differ:", not torch.equal(before, out))
    before = out.detach()
