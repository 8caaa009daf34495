"""A small language model that returns (logits, loss), or (logits, None) without targets."""

import torch
import torch.nn as nn
from torch.nn import functional as F


class Bigram(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.token, self.mix, self.head = nn.Embedding(vocab, width), nn.Linear(width, width), nn.Linear(width, vocab)

    def forward(self, idx, targets=None):
        logits = self.head(torch.tanh(self.mix(self.token(idx))))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def generate(self, idx, count):
        for _ in range(count):
            logits, _ = self(idx)
            idx = torch.cat([idx, logits[:, -1].argmax(-1, keepdim=True)], 1)
        return idx


torch.manual_seed(41)
text = torch.arange(400) * 7 % 23
model = Bigram(23, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(20):
    ix = torch.randint(0, 380, (9,))
    x = torch.stack([text[i : i + 12] for i in ix])
    y = torch.stack([text[i + 1 : i + 13] for i in ix])
    logits, loss = model(x, targets=y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        print(f"step {step}: loss {loss.item():.7f}, right {(logits.argmax(-1) == y).float().mean():.6f}")
print(model.generate(torch.tensor([[1], [5]]), 6).tolist())
