"""The model draws per row from numpy's and Python's global streams, which the script uses, too."""

# test: right-or-refused=noise is drawn row by row in Python, from a stream that the script uses, too
# test: workers=2,3
import random

import numpy as np
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        scale = torch.from_numpy(np.random.uniform(0.9, 1.1, (len(x), 1)).astype(np.float32))
        keep = torch.tensor([[float(random.random() < 0.9)] for _ in range(len(x))])
        return self.fc(x * scale) * keep


np.random.seed(5)
random.seed(5)
torch.manual_seed(321)
x = torch.randn(31, 4)
y = x.sum(1, keepdim=True)
model = Noisy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = torch.from_numpy(np.random.permutation(31)[:11])
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {random.random():.8f}")
