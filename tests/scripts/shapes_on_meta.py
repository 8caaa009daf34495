"""A model is called on the meta device to find out shapes, as Keras does; noise inside has its bounds in tensors."""
# test: workers=2,3

import torch
from torch import nn

torch.manual_seed(25)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        x = self.one(x)
        if self.training and not x.is_meta:
            bound = 0.5 / torch.sqrt(torch.tensor(x.shape[1] * 1.0))
            x = x + torch.zeros_like(x).uniform_(-bound, bound)
        return self.two(x.relu())


model = Net()
with torch.device("meta"):
    shape = nn.Sequential(Net())(torch.empty(10, 6)).shape
print("shape", tuple(shape))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x, y = torch.randn(10, 6), torch.randint(0, 3, (10,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
