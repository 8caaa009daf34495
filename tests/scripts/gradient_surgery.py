"""PCGrad: gradients of two tasks taken apart, projected, and written back into p.grad."""

import torch
from torch import nn

torch.manual_seed(134)
x = torch.randn(20, 5)
targets = [x.sum(1, keepdim=True), -x.sum(1, keepdim=True) + x[:, :1]]
model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    out = model(x)
    flats, losses = [], [nn.functional.mse_loss(out, t) for t in targets]
    for loss in losses:
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        flats.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))
    a, b = flats
    dot = a @ b
    total = a + b if dot >= 0 else a - dot / (b @ b) * b + b - dot / (a @ a) * a
    offset = 0
    for p in model.parameters():
        p.grad = total[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    optimizer.step()
    print(f"{losses[0].item():.8f} {losses[1].item():.8f} dot {dot.item():.8f}")
