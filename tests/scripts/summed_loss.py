"""A test loss summed over samples and a counter of batches, as examples print them: never those of a slice."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(411)
x = torch.randn(62, 6)
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(data, batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(2):
    model.train()
    total, seen = 0.0, 0
    for i, (a, b) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(a), b, reduction="sum")
        optimizer.zero_grad()
        (loss / len(a)).backward()
        optimizer.step()
        total, seen = total + loss.item(), seen + len(a)
        print(f"epoch {epoch} [{i}/{len(loader)}] seen {seen}/{len(loader.dataset)} total {total:.6f}")
    model.eval()
    with torch.no_grad():
        summed = sum(nn.functional.cross_entropy(model(a), b, reduction="sum").item() for a, b in loader)
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in loader)
    print(f"test {summed:.6f} {right}/{len(data)}")
