"""Adam, AdamW, RMSprop, Adagrad, NAdam."""

# test: views=batch,slice
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(94)
x = torch.randn(28, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).tanh())
for make in (optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.NAdam):
    model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 1))
    optimizer = make(model.parameters(), lr=0.01)
    for epoch in range(2):
        for a, b in DataLoader(data, batch_size=9, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
    print(make.__name__, f"{loss.item():.8f}", f"{model[0].weight.norm().item():.8f}")
