"""No DataLoader: a permutation and slices of tensors."""

# test: views=batch
# test: workers=2,3,5
import torch
import torch.nn as nn

torch.manual_seed(11)
N, batch = 70, 16
x = torch.randn(N, 12)
y = torch.tanh(x[:, :3]).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    order = torch.randperm(N)
    total = 0.0
    for i in range(0, N, batch):
        idx = order[i : i + batch]
        loss = ((model(x[idx]) - y[idx]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(idx)
    print(f"epoch {epoch}: train loss {total / N:.8f}")
