"""The word-language-model habit: the model returns [batch × time, vocabulary]."""

import torch
from torch import nn


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru, self.out = nn.Embedding(10, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, ids):
        h, _ = self.gru(self.embed(ids))
        return self.out(h).view(-1, 10)


torch.manual_seed(148)
model = LM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for step in range(8):
    ids = torch.randint(0, 10, (7, 6))
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits, ids[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {tuple(logits.shape)}")
