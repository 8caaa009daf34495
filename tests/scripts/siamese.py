"""A siamese network: one model called three times a step, triplet loss, a module without parameters for the distance."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(77)
anchor = torch.randn(29, 6)
data = TensorDataset(anchor, anchor + 0.1 * torch.randn(29, 6), torch.randn(29, 6))
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))
criterion = nn.TripletMarginLoss(margin=1.0)
distance = nn.PairwiseDistance()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, p, n in DataLoader(data, batch_size=8, shuffle=True):
        loss = criterion(model(a), model(p), model(n))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.8f}")
    with torch.no_grad():
        print(f"mean distance {distance(model(anchor), model(anchor.roll(1, 0))).mean().item():.8f}")
