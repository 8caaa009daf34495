"""Tokens (time, batch) without a loader, a padding mask (batch, time), outputs flattened to (time · batch, words)."""

import torch
from torch import nn


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Embedding(20, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(8, 20)

    def forward(self, x, mask):
        h = self.layer(self.embed(x), src_key_padding_mask=mask)
        return self.out(self.drop(h).view(-1, 8))


torch.manual_seed(507)
model = Language()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step, (length, batch) in enumerate([(7, 11), (7, 11), (5, 11), (11, 11), (9, 11), (7, 6), (11, 11)]):
    x = torch.randint(1, 20, (length, batch))
    mask = torch.arange(length)[None] >= torch.randint(3, length + 1, (batch, 1))
    loss = nn.functional.cross_entropy(model(x, mask), x.flip(0).view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.8f}")
