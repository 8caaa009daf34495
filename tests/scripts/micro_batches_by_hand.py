"""Token-mean loss over a padded batch, split into micro-batches by hand with the loss scaled by tokens; perplexity; batch size doubles."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
docs = [torch.randint(1, 20, (int(n),)) for n in torch.randint(3, 10, (40,))]


def pad(b):
    return nn.utils.rnn.pad_sequence(b, batch_first=True)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(20, 8), nn.GRU(8, 12, batch_first=True), nn.Linear(12, 20)
        self.o.weight = nn.Parameter(self.o.weight * 0.5)

    def forward(self, x):
        return self.o(self.r(self.e(x))[0]).flatten(0, 1)


m = LM()
o = torch.optim.SGD(m.parameters(), lr=1.0)
bs = 4
for e in range(3):
    nll = n = 0
    for b in DataLoader(sorted(docs, key=len), batch_size=bs, collate_fn=pad):
        tokens = (b[:, 1:] > 0).sum()
        o.zero_grad()
        tot = 0
        for mb in torch.split(b, 3):
            loss = (
                nn.functional.cross_entropy(m(mb[:, :-1]), mb[:, 1:].flatten(), ignore_index=0, reduction="sum")
                / tokens
            )
            loss.backward()
            tot += loss.item()
        g = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()
        nll += tot * tokens.item()
        n += tokens.item()
    print(e, bs, f"ppl {math.exp(nll / n):.5f} grad {g.item():.6f}")
    bs *= 2
