"""Time-first features (time, batch, width) and a mask (batch, time), as many steps as samples in the first batch."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(5, 6, bidirectional=True), nn.Linear(12, 4)

    def forward(self, x, mask):
        h = self.rnn(x)[0] * mask.t()[..., None]
        return self.out(h).reshape(-1, 4), h.sum(0)


torch.manual_seed(512)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for step, (length, batch) in enumerate([(9, 9), (6, 9), (9, 6), (6, 6), (9, 9), (4, 13)]):
    x = torch.randn(length, batch, 5)
    mask = torch.rand(batch, length) < 0.8
    logits, pooled = model(x, mask)
    loss = nn.functional.cross_entropy(logits, x.argmax(2).clamp(max=3).view(-1)) + 0.1 * pooled.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.8f}")
