"""Deep clustering: features of all data without gradients, k-means in the loop, then training on pseudo-labels."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(225)
x = torch.cat([torch.randn(15, 4) + c for c in (-2, 0, 2)])
encoder, head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 3)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.2)
for epoch in range(3):
    with torch.no_grad():
        features = torch.cat([encoder(b) for (b,) in DataLoader(TensorDataset(x), batch_size=10)])
    centers = features[[0, 20, 40]]
    for _ in range(5):
        label = torch.cdist(features, centers).argmin(1)
        centers = torch.stack([features[label == k].mean(0) if (label == k).any() else centers[k] for k in range(3)])
    for a, b in DataLoader(TensorDataset(x, label), batch_size=12, shuffle=True):
        loss = nn.functional.cross_entropy(head(encoder(a)), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} counts {label.bincount(minlength=3).tolist()} loss {loss.item():.8f}")
