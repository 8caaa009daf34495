# framework: torch.func
# package: torch
# program: per-sample gradients with `vmap(grad(functional_call))`, an ensemble with `stack_module_state`, a Hessian
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, stack_module_state, vmap

torch.manual_seed(0)


def make():
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


model = make()
x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
params = {k: v.detach() for k, v in model.named_parameters()}
buffers = {k: v.detach() for k, v in model.named_buffers()}


def compute_loss(params, buffers, sample, target):
    predictions = functional_call(model, (params, buffers), (sample.unsqueeze(0),))
    return F.cross_entropy(predictions, target.unsqueeze(0))


per_sample = vmap(grad(compute_loss), in_dims=(None, None, 0, 0))(params, buffers, x, y)
print({k: round(v.flatten(1).norm(dim=1).mean().item(), 6) for k, v in per_sample.items()})


def batch_loss(params, x, y):
    return F.cross_entropy(functional_call(model, params, (x,)), y)


for step in range(5):
    grads, loss = grad_and_value(batch_loss)(params, x, y)
    params = {k: p - 0.3 * grads[k] for k, p in params.items()}
    print(f"step {step} {loss.item():.6f}")

models = [make() for _ in range(4)]
stacked, stacked_buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")


def fmodel(params, buffers, x):
    return functional_call(base, (params, buffers), (x,))


out = vmap(fmodel, in_dims=(0, 0, None))(stacked, stacked_buffers, x)
print(f"ensemble {out.mean().item():.6f} {out.std().item():.6f}")
optimizer = torch.optim.SGD(list(stacked.values()), lr=0.1)
for step in range(3):
    out = vmap(fmodel, in_dims=(0, 0, None))(stacked, stacked_buffers, x)
    loss = F.cross_entropy(out.flatten(0, 1), y.repeat(4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"ensemble step {step} {loss.item():.6f}")
w = torch.randn(3)
print(f"hessian {hessian(lambda w: (F.linear(x[:, :3], w[None]).sigmoid() ** 2).mean())(w).trace().item():.6f}")
