"""SGD's options: momentum, nesterov, dampening, weight decay; foreach on and off."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(93)
x = torch.randn(28, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).tanh())
for options in (
    dict(momentum=0.9, nesterov=True),
    dict(momentum=0.5, dampening=0.2, weight_decay=0.1),
    dict(foreach=True),
    dict(maximize=False, foreach=False),
):
    model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **options)
    for epoch in range(2):
        for a, b in DataLoader(data, batch_size=9, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
    print(sorted(options), f"{loss.item():.8f}", f"{model[0].weight.norm().item():.8f}")
