"""A few megabytes of parameters, more than one gradient bucket's worth at small bucket sizes, deep and narrow."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(233)
x = torch.randn(24, 64)
loader = DataLoader(TensorDataset(x, x[:, :5].argmax(1)), batch_size=8, shuffle=True)
layers = [nn.Linear(64, 512), nn.ReLU()]
for _ in range(4):
    layers += [nn.Linear(512, 512), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(512, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        print(f"{loss.item():.8f} {norm.item():.8f}")
