"""Hooks, retain_grad and autograd.grad on views of a model's output, before and after a function gathers the rows."""
# test: tolerance=1e-9  float64

import torch
from torch import nn

torch.manual_seed(31)
torch.set_default_dtype(torch.float64)
model = nn.Linear(4, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, x3 = torch.randn(8, 4), torch.randn(8, 5, 4)


def early(a):
    return a.pow(2).sum()


def late(a):
    return a.quantile(0.4) + a.flatten().quantile(0.7) * 2


def by_columns():
    out = model(x)
    return out, out[:, 0]


def by_split():
    out = model(x)
    return out, out.split(2, dim=1)[1]


def time_first():
    out = model(x3)
    return out, out.transpose(0, 1).reshape(-1, 6)


def of_a_view():
    out = model(x3)
    middle = out[:, 1:3]
    return middle, middle[:, 0]


def without_output():
    return None, model(x)[:, 1:4]


def hook_before(out, a):
    a.register_hook(lambda g: print("  seen", tuple(g.shape), g.abs().sum().item()))
    a.register_hook(lambda g: g.clamp(-0.3, 0.3))
    return early(a) + late(a)


def hook_between(out, a):
    loss = early(a)
    a.register_hook(lambda g: g.clamp(-0.3, 0.3))
    return loss + late(a)


def hook_after(out, a):
    loss = early(a) + late(a)
    a.register_hook(lambda g: g.clamp(-0.3, 0.3))
    return loss


def hook_after_gather(out, a):
    loss = late(a)
    a.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return loss + early(a)


def hooks_on_both(out, a):
    loss = early(a)
    if out is not None:
        out.register_hook(lambda g: g.clamp(-0.2, 0.2))
        loss = loss + late(out)
    a.register_hook(lambda g: g.clamp(-0.3, 0.3))
    return loss + late(a)


def retain_before(out, a):
    a.retain_grad()
    return early(a) + late(a)


def retain_after(out, a):
    loss = early(a) + late(a)
    a.retain_grad()
    return loss


def retain_both(out, a):
    loss = early(a)
    a.retain_grad()
    if out is not None:
        out.retain_grad()
        loss = loss + out.quantile(0.3)
    return loss + late(a)


def asked_for(out, a):
    loss = early(a) + late(a)
    (grad,) = torch.autograd.grad(loss, a, retain_graph=True)
    print("  asked", grad.abs().sum().item(), tuple(grad.shape))
    if out is not None:
        (grad,) = torch.autograd.grad(loss, out, retain_graph=True)
        print("  output", grad.abs().sum().item(), tuple(grad.shape))
    return loss


def asked_twice(out, a):
    loss = early(a) * late(a)
    (grad,) = torch.autograd.grad(loss, a, create_graph=True)
    return grad.pow(2).sum() + loss


def changed_after(out, a):
    loss = late(a)
    if out is not None:
        with torch.no_grad():
            out.data.mul_(1.0)
    return loss + early(a)


def not_used(out, a):
    a.register_hook(lambda g: print("  never called"))
    if out is None:
        return model(x).sum()
    loss = late(out)
    print("  unused", torch.autograd.grad(loss, a, retain_graph=True, allow_unused=True))
    return loss


MAKE = (by_columns, by_split, time_first, of_a_view, without_output)
USE = (
    *(hook_before, hook_between, hook_after, hook_after_gather, hooks_on_both, retain_before, retain_after),
    *(retain_both, asked_for, asked_twice, changed_after, not_used),
)
for make in MAKE:
    for use in USE:
        out, a = make()
        optimizer.zero_grad()
        loss = use(out, a)
        loss.backward()
        kept = [
            t.grad.abs().sum().item()
            for t in (out, a)
            if use.__name__.startswith("retain") and t is not None and t.grad is not None
        ]
        print(make.__name__, use.__name__, loss.item(), [p.grad.norm().item() for p in model.parameters()], kept)
        optimizer.step()
