"""SGD stepped with a closure, as Lightning-like loops do."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(97)
x = torch.randn(27, 5)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8):

        def closure(a=a, b=b):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"{loss.item():.8f}")
