"""K-fold cross-validation: a new model, optimizer and loaders per fold."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(169)
x = torch.randn(36, 5)
y = (x[:, :2].sum(1) > 0).long()
data = TensorDataset(x, y)
folds = torch.randperm(36).chunk(3)
scores = []
for k, held_out in enumerate(folds):
    train = torch.cat([f for i, f in enumerate(folds) if i != k])
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        for a, b in DataLoader(Subset(data, train.tolist()), batch_size=7, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        a, b = data[held_out]
        scores.append((model(a).argmax(1) == b).float().mean().item())
    print(f"fold {k} loss {loss.item():.8f} accuracy {scores[-1]:.6f}")
print(f"mean {sum(scores) / 3:.6f}")
