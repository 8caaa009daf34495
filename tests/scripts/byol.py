"""BYOL: online and target networks, a predictor, symmetric loss with stopped gradients, momentum update."""

# test: workers=2
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(305)
online = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))
target = copy.deepcopy(online)
predictor = nn.Linear(5, 5)
optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.1)
for step in range(6):
    x = torch.randn(9, 6)
    a, b = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    p1, p2 = predictor(online(a)), predictor(online(b))
    with torch.no_grad():
        t1, t2 = target(a), target(b)
    loss = 2 - F.cosine_similarity(p1, t2.detach()).mean() - F.cosine_similarity(p2, t1.detach()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for o, t in zip(online.parameters(), target.parameters()):
        t.data.lerp_(o.data, 0.05)
    print(f"{loss.item():.8f} collapse {F.normalize(t1, dim=1).std(0).mean().item():.8f}")
