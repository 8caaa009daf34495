"""Ends its loops by the clock, in the ways in which scripts read it: workers that look at their own clocks part."""

# test: agree=how far a loop comes depends on the machine
import time
from time import perf_counter as now

import torch
from torch import nn


class Timer:
    def __init__(self, budget):
        self.budget, self.began = budget, time.monotonic_ns()

    def is_over(self):
        return time.monotonic_ns() - self.began > self.budget * 1e9


torch.manual_seed(199)
x = torch.randn(20, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step():
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


step()  # what is done once takes its time
steps, timer = 0, Timer(0.1)
while not timer.is_over():
    steps, loss = steps + 1, step()
print(f"{steps} steps, loss {loss:.8f}")
for steps in range(10**6):
    if steps == 0:
        start = now()
    loss = step()
    elapsed = now() - start
    if elapsed > 0.1:
        break
print(f"{steps} steps, loss {loss:.8f}")
slow = 0
for _ in range(20):
    step()
    if time.time() % 0.002 < 0.001:
        slow += 1
        step()
print(f"{slow} steps more")
