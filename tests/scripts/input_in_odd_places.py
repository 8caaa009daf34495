# test: workers=2,3
"""A loader's batches where Python and torch take them in other ways than functions: custom Functions with and without a
learned argument, recomputation, scripted, traced and compiled code, torch.func, hooks, deep copies, buffers of the
loader's own that are reused, datasets that hand out their own memory, threads, caches over epochs, and gradients of
inputs."""

import copy
import io
import itertools
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
gain = torch.ones(6, requires_grad=True)
optimizer = torch.optim.SGD([*net.parameters(), gain], lr=0.1)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.mul(8).round().div(8)

    @staticmethod
    def backward(ctx, grad):
        return grad


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) + x.mean(1, keepdim=True)


compiled = torch.compile(lambda x: x.sin() + 0.1, backend="eager")


def step(x, y, told):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(told, f"{loss.item():.6f} {gain.sum().item():.6f} {x.detach().double().sum().item():.5f}")


loader = DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True)
for number, (a, b) in enumerate(itertools.islice(itertools.cycle(loader), 14)):
    if number % 7 == 0:
        step(Scale.apply(a, gain), b, "learned")
    if number % 7 == 1:
        step(Scale.apply(Round.apply(a * 2), gain) * gain, b, "rounded")
    if number % 7 == 2:
        step(scripted(a * 1.5), b, "scripted")
    if number % 7 == 3:
        step(compiled(a) + compiled(a * 2), b, "compiled")
    if number % 7 == 4:
        step(checkpoint(lambda a: (a * gain).sin(), a + 1, use_reentrant=False), b, "checkpoint")
        step(checkpoint(lambda a, g: (a * g).cos(), a + 1, gain, use_reentrant=True), b, "reentrant")
    if number % 7 == 5:
        parameters = dict(net.named_parameters())

        def loss_of(parameters, a=a, b=b):
            return F.cross_entropy(torch.func.functional_call(net, parameters, (a * 0.5,)), b)

        grads = torch.func.grad(loss_of)(parameters)
        print("func", f"{sum(g.abs().sum() for g in grads.values()).item():.5f}")
        print("vmap", f"{torch.vmap(lambda r: (r * r).sum())(a + 1).sum().item():.4f}")
    if number % 7 == 6:
        g = (a * 1.0).requires_grad_()
        F.cross_entropy(net(g), b).backward()
        other = copy.deepcopy(a.detach())
        other[0] = 0
        print("input", f"{g.grad.abs().sum().item():.6f} {other.sum().item():.5f} {type(g.grad).__name__}")

traced = torch.jit.trace(net, a.detach())
buffer = io.BytesIO()
torch.save({"a": a.detach() * 2, "b": b}, buffer)
buffer.seek(0)
print("saved", f"{torch.load(buffer)['a'].sum().item():.5f} {traced(a.detach()).sum().item():.5f}")


class Batches(Dataset):
    """Hands out its own memory, as a whole batch."""

    def __init__(self):
        self.x = torch.randn(3, 8, 6)

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return self.x[i]


own = Batches()
for epoch in range(2):
    for a in DataLoader(own, batch_size=None):
        half = a[:, :3]
        b = (a * 2).clamp(-1, 1)
        a -= 0.25
        F.relu(half, inplace=True)
        half.data.add_(0.125)
        a[:, 1] = b[:, 1]
        nn.functional.leaky_relu(a, 0.1, True)
        step(a, torch.arange(8) % 3, "own memory")
    print("dataset", f"{own.x.double().sum().item():.6f} {own.x[1, :2, :3].flatten().tolist()}")

reused = torch.empty(10, 6)


def into_one_buffer(rows):
    torch.stack([row for row, _ in rows], out=reused[: len(rows)])
    return reused, reused, torch.stack([label for _, label in rows])


kept = []
for a, same, b in DataLoader(TensorDataset(x, y), batch_size=10, collate_fn=into_one_buffer):
    print("twice", a is same, a.data_ptr() == same.data_ptr())
    kept.append(a + 0.5)
    same *= 2
    step(a, b, "one buffer")
print("kept", [f"{one.sum().item():.4f}" for one in kept])


class Odd:
    """Holds what a loader hands out, as no container does."""

    def __init__(self, rows):
        self.x, self.y = torch.stack([row for row, _ in rows]), torch.stack([label for _, label in rows])

    def pin_memory(self):
        return self


for batch in DataLoader(TensorDataset(x, y), batch_size=10, collate_fn=Odd):
    batch.x += 1
    step(batch.x * 2, batch.y, "object")

queue = []


def read():
    queue.extend(DataLoader(TensorDataset(x, y), batch_size=10))


thread = threading.Thread(target=read)
thread.start()
thread.join()
for a, b in queue:
    step(a.float() * 3, b, "thread")
