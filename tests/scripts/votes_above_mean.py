"""Integer outputs that mix samples: a row gets a vote if its score is above the mean of the batch."""

import torch
from torch import nn


class Vote(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(64, 1)

    def forward(self, x):
        scores = self.score(x)[:, 0]
        return (scores > scores.mean()).long()


torch.manual_seed(0)
x = torch.randn(6000, 64)
model = Vote()
for call in range(3):
    with torch.no_grad():
        votes = model(x)
    print(call, votes.sum().item(), (votes * torch.arange(6000)).sum().item())
