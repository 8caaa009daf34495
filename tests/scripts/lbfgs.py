"""LBFGS with a closure, with and without line search."""

# test: workers=2,3,5
import torch
from torch import nn

torch.manual_seed(96)
torch.set_default_dtype(torch.float64)
x = torch.randn(25, 3)
y = (x * torch.tensor([1.0, -2.0, 0.5])).sum(1, keepdim=True).tanh()
for search in (None, "strong_wolfe"):
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.5 if search is None else 1, max_iter=4, line_search_fn=search
    )
    calls = 0

    def closure():
        global calls
        calls += 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for step in range(4):
        loss = optimizer.step(closure)
        print(search, step, calls, f"{loss.item():.10f}")
