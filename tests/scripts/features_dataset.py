"""Features computed once by a backbone become a dataset, whose loader has processes of its own; and a list of them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(509)
x = torch.randn(40, 8)
y = (x.sum(1) > 0).long()
backbone, head = nn.Sequential(nn.Linear(8, 12), nn.ReLU()), nn.Linear(12, 2)
with torch.no_grad():
    features = backbone(x)
    listed = [(backbone(x[i : i + 4]), y[i : i + 4]) for i in range(0, 40, 4)]
optimizer = torch.optim.SGD(head.parameters(), lr=0.3)
for loader in (
    DataLoader(TensorDataset(features, y), batch_size=9, shuffle=True, num_workers=1),
    DataLoader(listed, batch_size=3, shuffle=True),
):
    for a, b in loader:
        loss = nn.functional.cross_entropy(head(a.flatten(0, -2)), b.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
