"""numpy's names of arguments on an output that is large enough to stay sharded: axis for dim, keepdims for keepdim."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(8, 64) + torch.arange(8)[:, None] / 2
place = torch.arange(8.0)[:, None]
model = nn.Linear(64, 4096)
y = model(x)
pairs = torch.stack([y, 2 * y], axis=1)
print(tuple(pairs.shape), f"{(pairs[:, 0] * place).sum().item():.3f}")
wide = torch.cat([y, 2 * y], axis=1)
print(tuple(wide.shape), f"{(wide[:, 4096:] * place).sum().item():.3f}")
means = y.mean(axis=1, keepdims=True)
print(tuple(means.shape), f"{(means * place).sum().item():.5f}")
sums = torch.sum(y, axis=0)
print(tuple(sums.shape), f"{sums[:3].sum().item():.5f}")
print(f"{torch.softmax(y, axis=1).amax(axis=1).sum().item():.6f}", y.argmax(axis=1).tolist())
