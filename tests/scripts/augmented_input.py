# test: workers=2,3
"""Augments batches in the training loop: a normalisation, flips, shifts, noise, a colour jitter, mix-up, cut-mix and
boxes that are cut out, in place and not, with random numbers for each sample and for a batch. Reads and prints batches
before and after it, keeps some, and evaluates without it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = (torch.rand(60, 3, 12, 12) * 255).to(torch.uint8)
labels = images.float().mean((1, 2, 3)).gt(127.5).long() + 2 * (torch.rand(60) < 0.3).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=14, shuffle=True)
net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(200, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
mean, std = torch.tensor([0.48, 0.45, 0.4]).view(1, 3, 1, 1), torch.tensor([0.2, 0.21, 0.22]).view(1, 3, 1, 1)


def flip(x):
    chosen = torch.rand(len(x)) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), x.flip(-1), x)


def flip_by_index(x):
    x = x.clone()
    chosen = torch.rand(x.size(0)) < 0.5
    x[chosen] = x[chosen].flip(-1)
    return x


def shift(x):
    across, down = (int(n) for n in torch.randint(0, 5, (2,)))
    return F.pad(x, (2, 2, 2, 2), mode="reflect")[:, :, down : down + 12, across : across + 12]


def jitter(x):
    x = x * (1 + 0.2 * torch.randn(x.size(0), 1, 1, 1))
    grey = x.mean(1, keepdim=True)
    x = (x - grey) * (1 + 0.1 * torch.randn(x.size(0), 1, 1, 1)) + grey
    return (x - x.mean((1, 2, 3), keepdim=True)) * (1 + 0.1 * torch.rand(len(x), 1, 1, 1)) + 0.01 * torch.randn_like(x)


def turn(x):
    angle = 0.2 * torch.randn(len(x))
    theta = torch.zeros(len(x), 2, 3)
    theta[:, 0, 0], theta[:, 0, 1], theta[:, 1, 0], theta[:, 1, 1] = angle.cos(), -angle.sin(), angle.sin(), angle.cos()
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def cut_out(x):
    boxes = torch.randint(0, 9, (len(x), 2))
    row, column = torch.arange(12).view(1, 12, 1), torch.arange(12).view(1, 1, 12)
    y, z = boxes[:, 0].view(-1, 1, 1), boxes[:, 1].view(-1, 1, 1)
    inside = (row >= y) & (row < y + 4) & (column >= z) & (column < z + 4)
    return x.masked_fill(inside[:, None], 0.0)


def mix_up(x, y, kind):
    share = float(torch.distributions.Beta(0.4, 0.4).sample())
    if kind == 0:
        order = torch.randperm(len(x))
        return share * x + (1 - share) * x[order], share * y + (1 - share) * y[order]
    if kind == 1:
        return x.roll(1, 0).mul_(1 - share).add_(x.mul(share)), y.roll(1, 0) * (1 - share) + y * share
    return share * x + (1 - share) * x.flip(0), share * y + (1 - share) * y.flip(0)


def cut_mix(x, y):
    order, x = torch.randperm(len(x)), x.clone()
    x[:, :, 2:8, 3:9] = x[order, :, 2:8, 3:9]
    return x, 0.75 * y + 0.25 * y[order]


def augment(x, y, step):
    x = shift(flip(x))
    if step % 2:
        x = cut_out(jitter(x))
    if step % 3 == 0:
        x = turn(x)
    if step % 5 == 4:
        x = flip_by_index(x)
    if step % 4 == 2:
        x = x.contiguous()
        x -= 0.1
        x[:, 0] *= 1.1
    y = F.one_hot(y, 4).float()
    return cut_mix(x, y) if step % 7 == 3 else mix_up(x, y, step % 3)


step, kept = 0, []
for epoch in range(3):
    net.train()
    for raw, y in loader:
        x = (raw.float().div(255) - mean) / std
        if step % 6 == 5:
            raw[:2] = 0
            print("raw", raw.float().mean().item(), float(x.std()))
        x, target = augment(x, y, step)
        if step == 4:
            kept.append(x)
        if step % 8 == 7:
            print(x.shape, x.dtype, f"{x[0].sum().item():.4f} {x.numpy().mean():.5f}")
        loss = -(F.log_softmax(net(x), dim=1) * target).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, step, f"{loss.item():.6f} {x.mean().item():.5f} {x.abs().max().item():.5f}")
        step += 1
    net.eval()
    with torch.no_grad():
        right = sum((net((x.float() / 255 - mean) / std).argmax(1) == y).sum().item() for x, y in loader)
    print(epoch, right)
print(f"{kept[0].double().pow(2).sum().item():.6f} {torch.rand(1).item():.6f}")
