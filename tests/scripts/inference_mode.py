"""Evaluation under inference_mode, with a decorated function and a context; predictions collected."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(192)
x = torch.randn(44, 5)
y = x.norm(dim=1)
loader = DataLoader(TensorDataset(x[:30], y[:30]), batch_size=8, shuffle=True)
test = DataLoader(TensorDataset(x[30:], y[30:]), batch_size=4)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.inference_mode()
def evaluate():
    model.eval()
    predictions = torch.cat([model(a) for a, _ in test])
    model.train()
    return predictions


print(f"before {evaluate().mean().item():.8f}")
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    predictions = evaluate()
    with torch.inference_mode():
        again = model(x[30:])
    print(
        f"{loss.item():.8f} rmse {(predictions - y[30:]).pow(2).mean().sqrt().item():.8f} {torch.allclose(predictions, again, atol=1e-6)}"
    )
