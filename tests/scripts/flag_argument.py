"""return_features flag toggles the output; and an int that picks a layer."""

# test: right-or-refused=with one value of an argument it looks at the whole batch
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x, pool=False):
        h = F.relu(self.b(F.relu(self.a(x))))
        if pool:
            return h.std(0)  # batch statistic
        return self.c(h)


torch.manual_seed(0)
x = torch.randn(30, 6)
y = x[:, :3].argmax(1)
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.1)
for e in range(6):
    out = m(x, False)
    loss = F.cross_entropy(out, y)
    if e >= 2:
        loss = loss + 0.1 * (1 - m(x, True)).pow(2).mean()
    o.zero_grad()
    loss.backward()
    o.step()
    print(e, f"{loss.item():.6f}")
