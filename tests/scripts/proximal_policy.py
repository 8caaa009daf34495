"""PPO: a rollout without gradients, advantages, several epochs of shuffled minibatches, an early stop on the KL."""

# test: workers=2
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(326)
actor = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 3))
critic = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.1)
state = torch.zeros(4, 3)
for update in range(2):
    states, actions, logs, rewards, values = [], [], [], [], []
    for t in range(6):
        with torch.no_grad():
            policy, value = Categorical(logits=actor(state)), critic(state).squeeze(1)
        action = policy.sample()
        states.append(state)
        actions.append(action)
        logs.append(policy.log_prob(action))
        values.append(value)
        state = torch.tanh(state + nn.functional.one_hot(action, 3) * 0.5 - 0.2)
        rewards.append(state[:, 0] - state[:, 1])
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).flatten()
    states, actions, logs = torch.cat(states), torch.cat(actions), torch.cat(logs)
    advantage = returns - torch.cat(values)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for epoch in range(3):
        for mb in torch.randperm(24).split(10):
            policy = Categorical(logits=actor(states[mb]))
            ratio = (policy.log_prob(actions[mb]) - logs[mb]).exp()
            clipped = torch.min(ratio * advantage[mb], ratio.clamp(0.8, 1.2) * advantage[mb])
            loss = (
                -clipped.mean()
                + 0.5 * (critic(states[mb]).squeeze(1) - returns[mb]).pow(2).mean()
                - 0.01 * policy.entropy().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            optimizer.step()
        with torch.no_grad():
            kl = (logs - Categorical(logits=actor(states)).log_prob(actions)).mean().item()
        print(f"update {update} epoch {epoch} loss {loss.item():.7f} kl {kl:.8f}")
        if kl > 0.02:
            break
