"""A VAE counts the samples that it has seen in a plain attribute: the count sets the weight of the next KL term."""

import torch
from torch import nn


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)
        self.seen = 0

    def forward(self, x):
        beta = min(1.0, self.seen / 60)
        self.seen += x.size(0)
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        return self.decoder(z), beta * kl


torch.manual_seed(0)
model = Vae()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    x = torch.randn(10, 6)
    decoded, kl = model(x)
    loss = (decoded - x).pow(2).sum(1).mean() + kl.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} seen {model.seen}")
