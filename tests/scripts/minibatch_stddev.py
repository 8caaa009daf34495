"""A discriminator with a minibatch-stddev layer: it looks across the batch, in training and evaluation."""

# test: right-or-refused=samples are mixed inside the model
import torch
from torch import nn


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 8), nn.Linear(9, 1)

    def forward(self, x):
        h = torch.relu(self.a(x))
        spread = h.std(0).mean().expand(len(h), 1)
        return self.b(torch.cat([h, spread], 1))


torch.manual_seed(231)
model = Discriminator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.cat([torch.randn(5, 3), torch.randn(5, 3) * 0.2])
    y = torch.cat([torch.ones(5, 1), torch.zeros(5, 1)])
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
