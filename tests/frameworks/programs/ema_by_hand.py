# framework: plain torch
# package: torch
# program: a hand-written EMA class with `apply_shadow` and `restore`, and a `deepcopy` teacher
import copy

import torch
import torch.nn.functional as F
from torch import nn


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay, self.shadow, self.backup = model, decay, {}, {}
        for name, param in model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = param.data.clone()

    def update(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]

    def apply_shadow(self):
        for name, param in self.model.named_parameters():
            self.backup[name] = param.data
            param.data = self.shadow[name]

    def restore(self):
        for name, param in self.model.named_parameters():
            param.data = self.backup[name]
        self.backup = {}


torch.manual_seed(8)
student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)
ema = EMA(student, 0.9)
opt = torch.optim.Adam(student.parameters(), lr=1e-2)
x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
for step in range(8):
    idx = torch.randperm(64)[:16]
    logits = student(x[idx])
    with torch.no_grad():
        target = teacher(x[idx] + 0.1 * torch.randn(16, 8)).softmax(-1)
    loss = F.cross_entropy(logits, y[idx]) + F.kl_div(logits.log_softmax(-1), target, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update()
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.mul_(0.95).add_(s, alpha=0.05)
    student.eval()
    ema.apply_shadow()
    shadow_loss = F.cross_entropy(student(x), y).item()
    ema.restore()
    student.train()
    print(f"step {step} loss {loss.item():.6f} ema {shadow_loss:.6f}")
