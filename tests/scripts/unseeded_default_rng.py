"""numpy.random.default_rng() without a seed: each process gets its own entropy."""

# test: agree-or-refused=a generator that is seeded by the operating system
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng()
x = torch.from_numpy(rng.normal(size=(30, 4)).astype(np.float32))
y = x.sum(1, keepdim=True)
torch.manual_seed(198)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = torch.from_numpy(rng.permutation(30)[:9])
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
