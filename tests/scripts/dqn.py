"""Deep Q-learning: replay buffer with Python's random, target network copied by load_state_dict."""

import random
from collections import deque

import torch
from torch import nn

random.seed(7)
torch.manual_seed(173)


def network():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


online, target = network(), network()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.SGD(online.parameters(), lr=0.05)
memory, state = deque(maxlen=100), torch.zeros(2)
for step in range(60):
    if random.random() < 0.3:
        action = random.randrange(3)
    else:
        with torch.no_grad():
            action = online(state[None]).argmax(1).item()
    following = (state * 0.9 + torch.tensor([action - 1.0, 0.1 * action])).clamp(-2, 2)
    reward = -abs(following[0].item() - 1)
    memory.append((state, action, reward, following))
    state = following
    if len(memory) >= 16:
        s, a, r, n = zip(*random.sample(memory, 11))
        q = online(torch.stack(s)).gather(1, torch.tensor(a)[:, None]).squeeze(1)
        with torch.no_grad():
            goal = torch.tensor(r) + 0.9 * target(torch.stack(n)).max(1).values
        loss = nn.functional.smooth_l1_loss(q, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 9 == 0:
            print(f"step {step} loss {loss.item():.8f} q {q.mean().item():.8f}")
    if step % 20 == 19:
        target.load_state_dict(online.state_dict())
