"""An actor that returns a torch.distributions object, and a critic."""

# test: right-or-refused=tensors inside an object of another library
# test: workers=2
import torch
from torch import nn
from torch.distributions import Normal


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.log_std = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))

    def forward(self, state):
        return Normal(self.mean(state), self.log_std.exp().expand(len(state), -1))


torch.manual_seed(257)
actor, critic = Actor(), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.05)
for step in range(5):
    state = torch.randn(12, 4)
    policy = actor(state)
    action = policy.sample()
    reward = -(action - state[:, :2]).pow(2).sum(1)
    value = critic(state).squeeze(1)
    advantage = reward - value.detach()
    loss = (
        -(policy.log_prob(action).sum(1) * advantage).mean()
        + nn.functional.mse_loss(value, reward)
        - 0.01 * policy.entropy().mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} {reward.mean().item():.7f}")
