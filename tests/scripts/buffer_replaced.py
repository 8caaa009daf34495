"""Buffers that each call replaces by new tensors: a moving average of a batch, and a state with a row for each sample,
which the next call goes on from if it has as many (a spiking neuron's)."""
# test: workers=2,3

import torch
from torch import nn

torch.manual_seed(28)


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x):
        made = self.linear(x)
        shown = made - self.average
        self.average = 0.9 * self.average + 0.1 * made.detach().mean(0)
        return shown


class Neuron(nn.Module):
    def __init__(self, as_buffer):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        if as_buffer:
            self.register_buffer("state", torch.zeros(0), persistent=False)
        else:
            self.state = torch.zeros(0)

    def forward(self, x):
        if self.state.shape != x.shape:
            self.state = torch.zeros_like(x)
        self.state = 0.9 * self.state + self.linear(x)
        return (self.state > 0).float() + self.state, self.state

    def reset(self):
        self.state = torch.zeros_like(self.state)


model = Centred()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    loss = model(torch.randn(8, 3) + torch.arange(8)[:, None] / 4).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}", " ".join(f"{value:.5f}" for value in model.average.tolist()))
for as_buffer in (False, True):
    neuron = Neuron(as_buffer)
    optimizer = torch.optim.SGD(neuron.parameters(), lr=0.05)
    for step in range(4):
        neuron.state = neuron.state.detach()
        if step:
            neuron.reset()
        x = torch.randn(8, 3)
        loss = sum(neuron(x)[0] for _ in range(3)).pow(2).mean() + neuron.state.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(as_buffer, step, f"{loss.item():.6f}", tuple(neuron.state.shape))
