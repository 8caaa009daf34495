"""Layers collect outputs in a variable of the context that the model sets anew in each call; the script reads the list
after the call. The model mixes samples, so its layers are computed in slices one by one."""

# test: workers=2
from contextvars import ContextVar

import torch
from torch import nn

collected = ContextVar("collected")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.work, self.gate = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        gate = self.gate(x)
        collected.get().append(gate.softmax(-1))
        return torch.tanh(self.work(x)) * gate.amax(-1, keepdim=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([Layer(), Layer()]), nn.Linear(8, 2)

    def forward(self, x):
        collected.set([])
        for layer in self.layers:
            x = layer(x)
        return self.head(x - x.median(0).values)


torch.manual_seed(253)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for _ in range(5):
    x = torch.randn(12, 8)
    out = model(x)
    gates = collected.get()
    balance = sum(gate.mean(0).square().sum() for gate in gates)
    loss = nn.functional.cross_entropy(out, (x[:, 0] > 0).long()) + balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {balance.item():.8f} {len(gates)} {tuple(gates[0].shape)}")
