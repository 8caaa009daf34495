"""The best model so far is saved whole, and loaded at the end."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))

    def forward(self, x):
        return self.body(x)


torch.manual_seed(181)
x = torch.randn(48, 4)
y = (x[:, 0] * x[:, 1] > 0).long()
loader = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=8, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
best = 0.0
for epoch in range(6):
    model.train()
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x[32:]).argmax(1) == y[32:]).float().mean().item()
    if accuracy > best:
        best = accuracy
        torch.save(model, "best_model.pth")
        print(f"epoch {epoch} saved at {best:.4f}")
loaded = torch.load("best_model.pth", weights_only=False)
loaded.eval()
with torch.no_grad():
    print(f"best {best:.6f} loss {nn.functional.cross_entropy(loaded(x[32:]), y[32:]).item():.8f}")
