"""random_split for training and validation, SubsetRandomSampler for a probe."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, random_split

torch.manual_seed(24)
x = torch.randn(60, 5)
y = (x[:, 0] * x[:, 1] > 0).long()
full = TensorDataset(x, y)
train, valid = random_split(full, [0.75, 0.25], generator=torch.Generator().manual_seed(1))
train_loader = DataLoader(train, batch_size=11, shuffle=True)
valid_loader = DataLoader(valid, batch_size=6)
probe_loader = DataLoader(full, batch_size=4, sampler=SubsetRandomSampler(list(range(0, 60, 7))))
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(4):
    model.train()
    for a, b in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in valid_loader)
        probe = sum(nn.functional.cross_entropy(model(a), b, reduction="sum").item() for a, b in probe_loader)
    print(f"epoch {epoch} loss {loss.item():.8f} valid {right / len(valid):.6f} probe {probe / 9:.8f}")
