"""Multi-task model; what it returns is chosen by a string argument."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.heads = nn.ModuleDict({"cls": nn.Linear(12, 3), "reg": nn.Linear(12, 1)})

    def forward(self, x, task, y=None):
        h = torch.tanh(self.body(x))
        out = self.heads[task](h)
        if task == "cls":
            return out
        return F.mse_loss(out, y)


torch.manual_seed(0)
x = torch.randn(41, 6)
yc = x[:, :3].argmax(1)
yr = x.sum(1, keepdim=True)
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.1)
for step in range(12):
    i = torch.randperm(41)[:13]
    task = ["cls", "reg"][step % 2]
    loss = F.cross_entropy(m(x[i], "cls", yr[i]), yc[i]) if task == "cls" else m(x[i], "reg", yr[i])
    o.zero_grad()
    loss.backward()
    o.step()
    print(task, f"{loss.item():.6f}")
