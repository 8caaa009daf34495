"""REINFORCE: one state at a time, actions sampled in the loop, log-probabilities gathered over an episode."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(172)
policy = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for episode in range(4):
    state, logs, rewards = torch.zeros(1, 3), [], []
    for t in range(10):
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state = torch.tanh(state + (action.float() - 0.5).unsqueeze(1) * torch.tensor([[0.3, -0.2, 0.1]]))
        rewards.append(state[0, 0].item())
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.cat(logs) * (returns - returns.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"episode {episode} reward {sum(rewards):.7f} loss {loss.item():.7f}")
