"""Arguments that need a gradient and aren't cut: a hypernetwork's weights, a raw learned context."""

# test: workers=2,3,5
import torch
from torch import nn


class Main(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x, weight, context):
        return self.out(torch.tanh(x @ weight + context))


torch.manual_seed(161)
hyper, main = nn.Linear(5, 12), Main()
z, context = torch.randn(1, 5), nn.Parameter(torch.zeros(1, 3))
optimizer = torch.optim.SGD([*hyper.parameters(), *main.parameters(), context], lr=0.2)
x = torch.randn(23, 4)
y = x.sum(1, keepdim=True).sin()
for step in range(8):
    weight = hyper(z).view(4, 3)
    loss = nn.functional.mse_loss(main(x, weight, context), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} hyper {hyper.weight.grad.norm().item():.8f} context {context.grad.norm().item():.8f}")
