"""37 rows in batches of 8: the last batch has 5, which no N divides."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
X = torch.randn(37, 6)
Y = X[:, :2] * 2 - X[:, 2:4]
net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.2)
for epoch in range(4):
    for xb, yb in DataLoader(TensorDataset(X, Y), batch_size=8):
        loss = F.mse_loss(net(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(epoch, f"{loss.item():.9f}")
print("norm", f"{sum(p.norm().item() ** 2 for p in net.parameters()):.8f}")
