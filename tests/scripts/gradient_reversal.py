"""Domain adaptation: a gradient reversal layer between two models, two data streams, one backward."""

import torch
from torch import nn


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


torch.manual_seed(218)
source, target = torch.randn(24, 5), torch.randn(31, 5) + 0.5
labels = source[:, :2].argmax(1)
features, classify, domain = nn.Sequential(nn.Linear(5, 10), nn.ReLU()), nn.Linear(10, 2), nn.Linear(10, 1)
optimizer = torch.optim.SGD([p for m in (features, classify, domain) for p in m.parameters()], lr=0.1)
for step in range(8):
    s, t = torch.randperm(24)[:9], torch.randperm(31)[:7]
    f = features(torch.cat([source[s], target[t]]))
    task = nn.functional.cross_entropy(classify(f[:9]), labels[s])
    where = torch.cat([torch.zeros(9), torch.ones(7)])
    confusion = nn.functional.binary_cross_entropy_with_logits(domain(Reverse.apply(f, 0.1 * step)).squeeze(1), where)
    optimizer.zero_grad()
    (task + confusion).backward()
    optimizer.step()
    print(f"{task.item():.8f} {confusion.item():.8f} {features[0].weight.grad.norm().item():.8f}")
