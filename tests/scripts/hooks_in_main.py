"""Hooks keep activations in variables of main() and in attributes of an object; several hooks share them."""

# test: workers=2,3,5
import functools

import torch
from torch import nn


class Extractor:
    def __init__(self, layers):
        self.calls, self.last, self.features = 0, None, []
        for layer in layers:
            layer.register_forward_hook(self.keep)

    def keep(self, module, args, output):
        self.calls += 1
        self.last = output
        self.features.append(output)


def keep_by_module(module, args, output, store):
    store[module] = output


def main():
    torch.manual_seed(154)
    torch.set_default_dtype(torch.float64)
    student = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 1))
    teacher = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 4)).requires_grad_(False)
    captured, seen, newest, calls = {}, [], None, 0

    def hook(module, args, output):
        nonlocal newest, calls
        newest, calls = output, calls + 1

    for number in (0, 2):
        student[number].register_forward_hook(hook)
        student[number].register_forward_hook(lambda module, args, output, n=number: captured.update({n: output}))
    student[1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    student[3].register_forward_hook(functools.partial(keep_by_module, store=captured))
    extractor = Extractor(teacher[:3:2])
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    for step in range(6):
        x = torch.randn((18, 18, 7)[step % 3], 5)
        seen.clear()
        extractor.features.clear()
        loss = nn.functional.mse_loss(student(x), x.sum(1, keepdim=True))
        teacher(x)
        pairs = zip((captured[0], captured[2]), extractor.features, strict=True)
        hints = sum(nn.functional.mse_loss(mine, theirs) for mine, theirs in pairs)
        loss = loss + hints + 0.1 * seen[-1].pow(2).mean() + newest.abs().mean() + captured[student[3]].std()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9f} {hints.item():.9f} {extractor.last.sum().item():.9f} {tuple(newest.shape)}")
        print(len(seen), calls, extractor.calls, f"{student[0].weight.sum().item():.9f}")


main()
