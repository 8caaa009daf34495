"""A DistributedSampler left in the script, told that there is one replica."""

# test: views=batch,slice
# test: workers=2
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(325)
x = torch.randn(26, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{epoch} {loss.item():.8f}")
