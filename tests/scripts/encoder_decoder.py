"""An autoencoder in two models, called one after the other; one optimizer over both."""

# test: views=batch,slice
# test: workers=2,3,5
from itertools import chain

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(47)
data = torch.randn(38, 3) @ torch.randn(3, 10)
encoder = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3))
decoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 10))
optimizer = torch.optim.SGD(chain(encoder.parameters(), decoder.parameters()), lr=0.05)
for epoch in range(3):
    for x in DataLoader(data, batch_size=9, shuffle=True):
        code = encoder(x)
        loss = nn.functional.mse_loss(decoder(code), x) + 0.01 * code.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(
            f"{loss.item():.8f} encoder {encoder[0].weight.grad.norm().item():.8f} decoder {decoder[2].weight.grad.norm().item():.8f}"
        )
