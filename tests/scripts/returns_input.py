"""The model returns its input beside its output, and the same tensor twice."""

# test: workers=2
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        out = torch.tanh(self.fc(x))
        return x, out, out


torch.manual_seed(256)
x = torch.randn(13, 4)
first, second = Net(), Net()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.2)
for step in range(5):
    same, a, b = first(x)
    _, c, _ = second(a + b)
    loss = (c - same.flip(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {torch.equal(same, x)} {first.fc.weight.grad.norm().item():.8f}")
