"""A contrastive loss module with a learned temperature: a module with parameters that mixes the batch."""

# test: right-or-refused=samples are mixed inside a module with parameters
import torch
import torch.nn as nn
import torch.nn.functional as F


class ClipLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, a, b):
        logits = self.logit_scale.exp() * F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
        return F.cross_entropy(logits, torch.arange(len(a)))


torch.manual_seed(55)
left, right, criterion = nn.Linear(6, 4), nn.Linear(6, 4), ClipLoss()
optimizer = torch.optim.SGD([*left.parameters(), *right.parameters(), *criterion.parameters()], lr=0.2)
for step in range(6):
    x = torch.randn(10, 6)
    loss = criterion(left(x), right(x + 0.2 * torch.randn(10, 6)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.8f} scale {criterion.logit_scale.item():.8f}")
