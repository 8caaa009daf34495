"""A loss module that holds the critic and takes a gradient penalty inside its forward."""

# test: workers=2,3
import torch
from torch import nn


class CriticLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 1))

    def forward(self, real, fake):
        mixed = ((real + fake) / 2).requires_grad_(True)
        (grads,) = torch.autograd.grad(self.critic(mixed).sum(), mixed, create_graph=True)
        penalty = (grads.norm(dim=1) - 1).pow(2).mean()
        return self.critic(fake).mean() - self.critic(real).mean() + 10 * penalty


torch.manual_seed(262)
loss_module = CriticLoss()
optimizer = torch.optim.SGD(loss_module.parameters(), lr=0.05)
for step in range(6):
    loss = loss_module(torch.randn(11, 2) + 1, torch.randn(11, 2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {loss_module.critic[0].weight.grad.norm().item():.8f}")
