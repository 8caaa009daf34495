"""No module at all: weights are tensors."""

# test: right-or-refused=no module is called, so there is nothing to split
import torch

torch.manual_seed(65)
x = torch.randn(64, 10)
y = torch.randn(64, 1)
w1 = (torch.randn(10, 8) * 0.3).requires_grad_()
w2 = (torch.randn(8, 1) * 0.3).requires_grad_()
for t in range(30):
    loss = ((x @ w1).clamp(min=0) @ w2 - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for w in (w1, w2):
            w -= 0.05 * w.grad
            w.grad = None
    if t % 5 == 0:
        print(t, loss.item())
