"""forward adds its predictions to a histogram, a numpy array in an attribute."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.histogram = nn.Linear(6, 3), np.zeros(3)

    def forward(self, x, y):
        logits = self.layer(x)
        self.histogram += np.bincount(logits.argmax(1).numpy(), minlength=3)
        return F.cross_entropy(logits, y)


torch.manual_seed(5)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x, y = torch.randn(9, 6), torch.randint(0, 3, (9,))
    loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} predicted {model.histogram.astype(int).tolist()}")
