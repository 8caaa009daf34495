"""Word dropout by Python's random, word by word, inside the model; another module of the script is split."""

import random

import torch
from torch import nn


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)

    def forward(self, x):
        kept = [[w if random.random() > 0.2 else 0 for w in row] for row in x.tolist()]
        return self.embed(torch.tensor(kept)).mean(1)


random.seed(3)
torch.manual_seed(407)
x = torch.randint(20, (12, 5))
y = (x.sum(1) % 2).long()
words, head = Words(), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD([*words.parameters(), *head.parameters()], lr=0.5)
for step in range(6):
    loss = nn.functional.cross_entropy(head(words(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {random.random():.8f}")
