"""retain_grad and hooks on a model's output in any order: the gradient that is kept is that after all hooks."""
# test: tolerance=1e-9  float64

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(32)
torch.set_default_dtype(torch.float64)
model = nn.Linear(4, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 6, (8,))


def retain_first(out):
    out.retain_grad()
    out.register_hook(lambda g: g * 2)
    out.register_hook(lambda g: print("  seen", g.abs().sum().item()))


def retain_last(out):
    out.register_hook(lambda g: g * 2)
    out.retain_grad()


def retain_between(out):
    out.register_hook(lambda g: g * 2)
    out.retain_grad()
    out.register_hook(lambda g: g.clamp(-0.1, 0.1))


def retain_twice(out):
    out.retain_grad()
    out.retain_grad()
    out.register_hook(lambda g: g + 1)


def removed(out):
    out.retain_grad()
    first = out.register_hook(lambda g: g * 5)
    out.register_hook(lambda g: g - 1)
    first.remove()


def gathered(out):
    out.register_hook(lambda g: g * 2)
    out.quantile(0.5)
    out.retain_grad()
    out.register_hook(lambda g: g - 1)


def once(out):
    def hook(g):
        print("  once", g.norm().item())
        handle.remove()

    handle = out.register_hook(hook)


def of_view(out):
    out[:, 0].retain_grad()
    out.register_hook(lambda g: g * 2)


for use in (retain_first, retain_last, retain_between, retain_twice, removed, gathered, once, of_view):
    out = model(x)
    print(out.retains_grad, end=" ")
    use(out)
    print(out.retains_grad)
    loss = F.cross_entropy(out, y) + out.quantile(0.3)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    loss.backward()
    kept = out.grad.abs().sum().item() if out.retains_grad else None
    print(use.__name__, loss.item(), kept, [p.grad.norm().item() for p in model.parameters()])
    optimizer.step()
