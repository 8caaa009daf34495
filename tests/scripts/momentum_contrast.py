"""MoCo: a momentum encoder and a queue of keys kept by the loop."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(219)
query = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
key = copy.deepcopy(query)
for p in key.parameters():
    p.requires_grad_(False)
queue = F.normalize(torch.randn(4, 20), dim=0)
pointer = 0
optimizer = torch.optim.SGD(query.parameters(), lr=0.1)
for step in range(8):
    x = torch.randn(5, 6)
    q = F.normalize(query(x + 0.1 * torch.randn(5, 6)), dim=1)
    with torch.no_grad():
        for k, p in zip(key.parameters(), query.parameters()):
            k.data = k.data * 0.9 + p.data * 0.1
        keys = F.normalize(key(x + 0.1 * torch.randn(5, 6)), dim=1)
    logits = torch.cat([(q * keys).sum(1, keepdim=True), q @ queue.clone()], 1) / 0.2
    loss = F.cross_entropy(logits, torch.zeros(5, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue[:, pointer : pointer + 5] = keys.T
    pointer = (pointer + 5) % 20
    print(f"{loss.item():.8f} queue {queue.abs().sum().item():.7f}")
