"""Class weights and label smoothing in the loss; a weighted mean over the whole batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(46)
y = torch.randint(0, 4, (44,)).clamp(max=3)
x = torch.nn.functional.one_hot(y, 4).float() + torch.randn(44, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0, 0.7]), label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True):
        loss = criterion(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.8f}")
