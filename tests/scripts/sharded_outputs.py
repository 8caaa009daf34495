"""What scripts do with a model's output. tests/script/rows takes the tables of this file, too."""
# test: tolerance=1e-9  float64

import copy
import io
import pickle
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
B, T, V = 7, 4, 5
model = nn.Linear(6, V)
head = nn.Linear(V, 3)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1e-4)
x = torch.randn(B, T, 6)
labels = torch.randint(0, V, (B, T))
labels[:3, 1:] = -100
target = torch.rand(B, T, V)
weight = torch.rand(V) + 0.5
scale = nn.Parameter(torch.tensor(1.5))
vector = nn.Parameter(torch.rand(V))
mask = torch.rand(B, T) > 0.4
flat = labels.reshape(-1)
pos = torch.rand(V) + 0.5


def in_place(out):
    out += 1
    out.mul_(2)
    out[:, 0] = 0.5
    return out


def through_a_view(out):
    out = out * 1
    first = out[:, 0]
    first.mul_(3)
    return out


def view_of_gathered(out):
    out = out * 1
    first, flat = out[:, 0], out.view(-1, V)
    out[out.argmax(0)[0, 0]] = 0.25  # no known function
    first.mul_(3)
    return out + flat.view(B, T, V) + first.unsqueeze(1)


def attribute(out):
    out.weight = 5.0
    first = out[:, 0]
    first.label = "first"
    out.quantile(0.5)
    return out.sum() * out.weight + len(first.label)


def assigned(out):
    out = out * 1
    out[:, :] = target.unsqueeze(0).unsqueeze(0) * out.sum()
    out[:, 1] = torch.ones(1, 1, 1, V) * scale
    out[:, 2] = 3
    out[:, :, 1] = 0.25
    try:
        out[:, 0, 0] = [1.0] * B
    except TypeError:
        out = out * 2
    return out


def masked(out):
    out = out * 1
    out[out < 0] = 0
    out[~mask] = 0.5
    return out


def retained(out):
    loss = (out**2).mean()
    out.retain_grad()
    loss.backward(retain_graph=True)
    print("retained", out.grad.sum().item(), out.grad[2, 1].tolist())
    return out


def hooked(out):
    out.register_hook(lambda g: print("hook", tuple(g.shape), g.abs().sum().item()))
    out.register_hook(lambda g: g * 2)
    return out.sigmoid()


def gradient_of_output(out):
    (grad,) = torch.autograd.grad(out.exp().mean(), out, create_graph=True)
    return grad.square().sum() + out.mean()


def double_backward(out):
    grads = torch.autograd.grad(out.mean() ** 2 + out.square().mean(), list(model.parameters()), create_graph=True)
    return sum(g.square().sum() for g in grads)


def saved(out):
    buffer = io.BytesIO()
    torch.save(out, buffer)
    buffer.seek(0)
    return torch.load(buffer).sum() + out.sum()


def metric(out):
    first = out[:, 0]
    with torch.no_grad():
        print("metric", out.norm().item(), first.var().item())


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


ROWS = {
    "relu": torch.relu,
    "sigmoid": lambda o: o.sigmoid(),
    "gelu": F.gelu,
    "leaky": lambda o: F.leaky_relu(o, 0.2),
    "clamp": lambda o: o.clamp(-0.1, 0.3),
    "scaled": lambda o: o * scale + vector,
    "power": lambda o: (1 - o) ** 2 / 3 + 2**o,
    "minus target": lambda o: o - target,
    "target minus": lambda o: target - o,
    "both": lambda o: o * o.tanh() + o,
    "with rows broadcast": lambda o: o - o.mean(-1, keepdim=True),
    "compare": lambda o: (o.argmax(-1) == labels).double() * o.sum(-1),
    "where": lambda o: torch.where(o > 0, o, 0.1 * target),
    "masked_fill": lambda o: o.masked_fill(~mask.unsqueeze(-1), 0.0),
    "softmax": lambda o: F.softmax(o, dim=-1) + o.log_softmax(2),
    "max": lambda o: o.max(-1).values + o.max(dim=1)[0].sum(-1, keepdim=True),
    "topk": lambda o: o.topk(2).values.sum(-1),
    "sort": lambda o: o.sort(dim=1, descending=True)[0],
    "cumsum": lambda o: o.cumsum(1),
    "std": lambda o: o.std(-1),
    "norm": lambda o: o.norm(dim=-1) + torch.linalg.vector_norm(o, dim=2),
    "normalize": lambda o: F.normalize(o, dim=-1),
    "logsumexp": lambda o: o.logsumexp(-1),
    "layer norm": lambda o: F.layer_norm(o, (V,), vector),
    "view": lambda o: o.view(-1, V) * 2,
    "reshape": lambda o: o.reshape(B, T * V).view(B, V, T),
    "flatten": lambda o: o.flatten(0, 1).unsqueeze(1).squeeze(),
    "transpose": lambda o: o.transpose(0, 1).reshape(-1, V) + target.transpose(0, 1).reshape(-1, V),
    "permute": lambda o: o.permute(2, 0, 1).contiguous().view(V * B, T).exp(),
    "index": lambda o: o[:, -1] + o[:, 0, :] + o[..., None, 1:2, :].squeeze(1).squeeze(1),
    "chunk": lambda o: o.chunk(2, dim=1)[0] * o.split(2, 1)[1],
    "unbind": lambda o: torch.stack(o.unbind(1)[:2], 0) + torch.stack([o[:, 0], o[:, 1]], 0),
    "cat": lambda o: torch.cat([o, target, o**2], dim=-1),
    "gather": lambda o: o.gather(2, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1),
    "matmul": lambda o: o @ target[0].T + F.linear(o, target[0]),
    "detach": lambda o: o.detach() * o,
    "dtype": lambda o: o.float().double().to(torch.float64),
    "clone": lambda o: o.clone().contiguous(),
    "losses none": lambda o: (
        F.mse_loss(o, target, reduction="none").sum(-1)
        + F.cross_entropy(o.view(-1, V), flat, reduction="none").view(B, T)
    ),
    "in place": lambda o: in_place(o * 1),
    "through a view": through_a_view,
    "masked in place": masked,
    "like": lambda o: torch.zeros_like(o) + torch.ones_like(o) * o + o.new_full((V,), 0.5),
}
KEPT = {
    "sum": lambda o: o.sum(),
    "mean": lambda o: torch.mean(o) + o.mean(0).square().sum() + o.sum((0, 1)).tanh().sum(),
    "any": lambda o: (o > 0).any().double() + (o < 100).all().double() + (o > 0).sum() + o.sum(),
    "no dimensions": lambda o: o.sum(dim=()) + o.mean(dim=[]) + torch.sum(o, []) + o.nansum(dim=[]),
    "cross entropy": lambda o: F.cross_entropy(o.view(-1, V), flat),
    "cross entropy in classes first": lambda o: F.cross_entropy(o.transpose(1, 2), labels),
    "ignored": lambda o: nn.CrossEntropyLoss(ignore_index=2)(o[:, 0], labels[:, 0].clamp_min(0)),
    "probabilities": lambda o: F.cross_entropy(o.reshape(-1, V), target.reshape(-1, V).softmax(-1)),
    "sum of losses": lambda o: F.cross_entropy(o.view(-1, V), flat, reduction="sum") / 7,
    "nll": lambda o: F.nll_loss(o.log_softmax(-1).view(-1, V), flat, weight),
    "sequence first": lambda o: F.cross_entropy(o.transpose(0, 1).reshape(-1, V), labels.T.reshape(-1)),
    "mse": lambda o: F.mse_loss(o, target) + nn.L1Loss()(o, target) + F.huber_loss(o, target, reduction="sum"),
    "bce": lambda o: (
        F.binary_cross_entropy_with_logits(o, target, pos_weight=pos)
        + F.binary_cross_entropy(o.sigmoid(), target, weight=mask.double().unsqueeze(-1))
    ),
    "kl": lambda o: F.kl_div(o.log_softmax(-1), target.softmax(-1), reduction="batchmean"),
    "sums by flag": lambda o: F.cross_entropy(o.view(-1, V), flat.clamp_min(0), reduction="sum").sqrt(),
    "reversed": lambda o: F.mse_loss(target, o),
    "hooked": lambda o: hooked(o).sum(),
    "gradient of output": gradient_of_output,
    "double backward": double_backward,
    "accuracy": lambda o: (o.argmax(-1) == labels).sum().item() + o.mean(),
    "chained": lambda o: head(o).square().mean(),
    "chained flat": lambda o: head(o.view(-1, V)).square().mean() + head(o.transpose(0, 1)).mean(),
    "quantiles": lambda o: (o.quantile(torch.tensor([0.2, 0.7]), dim=2) * torch.tensor([1.0, 3.0]).view(2, 1, 1)).sum(),
    "einsum": lambda o: torch.einsum("btv,v->bt", o, vector).sum(),
    "weighted": lambda o: F.cross_entropy(o.view(-1, V), flat, weight=weight, label_smoothing=0.1),
    "loop": lambda o: sum(o[:, t].mean() * t for t in range(T)),
}
GATHERED = {
    "metric first": lambda o: (metric(o), o.square().sum())[1],
    "places": lambda o: sum(at.sum() for at in torch.where(o > 0)) * 0.01 + o.sum(),
    "flipped": lambda o: (o.transpose(0, 1).flip(0, 1) * target.transpose(0, 1)).sum(),
    "weighted mse": lambda o: F.mse_loss(o, target, weight=target * torch.linspace(1, 9, B).view(-1, 1, 1)),
    "other type": lambda o: (o.detach().view(torch.int64) > 0).sum() * 0.01 + o.sum(),
    "one sample": lambda o: o[0].sum() + o[1:3].mean(),
    "last samples": lambda o: o[B - 1].sum() + o[-2, 0].sum(),
    "one number": lambda o: o[:, 0, 0].select(0, 4) + o.select(0, 5).mean(),
    "split at the end": lambda o: o.split([B])[0].square().sum(),
    "rows by mask": lambda o: o[mask].mean(),
    "pairs": lambda o: torch.cdist(o[:, 0], o[:, 1]).mean() + (o.flatten(1) @ o.flatten(1).T).mean(),
    "all by all": lambda o: o.var() + o.max() + o.norm(),
    "any along no dimension": lambda o: (o * torch.any(o, dim=()) * (o > 0).all(dim=[])).sum(),
    "attribute": attribute,
    "along rows": lambda o: o.softmax(0).square().sum() + o.cumsum(0).mean(),
    "retained": retained,
    "function": lambda o: Double.apply(o).sum(),
    "numpy": lambda o: np.asarray(o.detach().cpu()).sum() + o.sum(),
    "list": lambda o: o.tolist()[2][1][0] + o.sum(),
    "iteration": lambda o: sum(row.sum() for row in o),
    "deepcopy": lambda o: copy.deepcopy(o.detach()).sum() + pickle.loads(pickle.dumps(o.detach())).sum() + o.sum(),
    "saved": saved,
    "text": lambda o: len(f"{o} {o!r}") * 0 + o.sum(),
    "assigned": assigned,
    "views of gathered": view_of_gathered,
    "into a plain tensor": lambda o: torch.zeros(B, T, V).add_(o).sum(),
    "copied": lambda o: torch.tensor(o).sum() + torch.tensor([o.sum()]).sum() + o.quantile(0.5),
    "variable": lambda o: torch.autograd.Variable(o, requires_grad=True).sum() * 2 + o.sum(),
    "mapped": lambda o: torch.vmap(lambda row: (row * vector).sum())(o).sum() + torch.func.vmap(torch.sin)(o).sum(),
    "vmap": lambda o: torch.vmap(lambda row: row.sum())(o.detach() * 1).sum() + o.sum(),
    "dropout": lambda o: F.dropout(o, 0.3).sum(),
    "backward with gradient": lambda o: (o.backward(target, retain_graph=True), o.sum())[1],
}


for names in (ROWS, KEPT, GATHERED):
    for name, use in names.items():
        out = model(x)
        optimizer.zero_grad()
        scale.grad = vector.grad = None
        made = use(out)
        loss = (made * torch.linspace(0.5, 1.5, made.numel()).view(made.shape)).sum()
        shape, values = tuple(made.shape), made.detach().flatten()[:: max(made.numel() // 5, 1)].tolist()
        loss.backward()
        parameters = (*model.parameters(), *head.parameters(), scale, vector)
        norms = [p.grad.norm().item() if p.grad is not None else 0.0 for p in parameters]
        print(name, shape, values, loss.item(), norms)
        optimizer.step()
