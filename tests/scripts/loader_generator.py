"""A loader with its own generator, a sampler with replacement, a Subset of a ConcatDataset."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Subset, TensorDataset

torch.manual_seed(26)
first, second = (TensorDataset(torch.randn(n, 6), torch.rand(n)) for n in (20, 17))
data = Subset(ConcatDataset([first, second]), range(3, 35))
loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5))
extra = DataLoader(data, batch_size=5, sampler=RandomSampler(data, replacement=True, num_samples=12))
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for source in (loader, extra):
        for x, y in source:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x).flatten(), y)
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.8f}")
