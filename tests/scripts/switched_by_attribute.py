"""The model's behaviour is switched by attributes and by the epoch, not by arguments."""

# test: right-or-refused=in one phase it looks at the whole batch
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 6)
        self.phase = "pretrain"

    def forward(self, x, y=None):
        h = torch.tanh(self.a(x))
        if self.phase == "pretrain":
            return F.mse_loss(self.c(h), x)
        if self.phase == "center":
            h = h - h.mean(0)
        return self.b(h)


torch.manual_seed(0)
x = torch.randn(30, 6)
y = x[:, :3].argmax(1)
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.1)
for e in range(9):
    m.phase = "pretrain" if e < 3 else "finetune" if e < 6 else "center"
    out = m(x)
    loss = out if e < 3 else F.cross_entropy(out, y)
    o.zero_grad()
    loss.backward()
    o.step()
    print(m.phase, f"{loss.item():.6f}")
