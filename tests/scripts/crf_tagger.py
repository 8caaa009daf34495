"""BiLSTM-CRF: the loss is a method, the dynamic programme uses raw transition parameters."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, V=30, T=4, H=8):
        super().__init__()
        self.emb, self.rnn, self.out = (
            nn.Embedding(V, 6),
            nn.LSTM(6, H, batch_first=True, bidirectional=True),
            nn.Linear(2 * H, T),
        )
        self.trans, self.start = nn.Parameter(torch.randn(T, T) * 0.1), nn.Parameter(torch.zeros(T))

    def features(self, x):
        return self.out(self.rnn(self.emb(x))[0])

    def neg_log_likelihood(self, x, tags, mask):
        f = self.features(x)
        a = self.start + f[:, 0]
        gold = self.start[tags[:, 0]] + f[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, x.shape[1]):
            nxt = torch.logsumexp(a[:, :, None] + self.trans + f[:, t][:, None], 1)
            m = mask[:, t]
            a = torch.where(m[:, None], nxt, a)
            gold = gold + m * (
                self.trans[tags[:, t - 1], tags[:, t]] + f[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
            )
        return (torch.logsumexp(a, 1) - gold).sum() / mask.sum()

    @torch.no_grad()
    def decode(self, x):
        f = self.features(x)
        a = self.start + f[:, 0]
        back = []
        for t in range(1, x.shape[1]):
            v, i = (a[:, :, None] + self.trans).max(1)
            a = v + f[:, t]
            back.append(i)
        best = [a.argmax(1)]
        for i in reversed(back):
            best.append(i.gather(1, best[-1][:, None]).squeeze(1))
        return torch.stack(best[::-1], 1)


torch.manual_seed(0)
x = torch.randint(0, 30, (33, 7))
tags = x % 4
mask = torch.arange(7) < torch.randint(3, 8, (33, 1))
m = Tagger()
o = torch.optim.SGD(m.parameters(), lr=0.5)
for e in range(3):
    for i in torch.randperm(33).split(10):
        loss = m.neg_log_likelihood(x[i], tags[i], mask[i])
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.6f}")
    print("acc", f"{(m.decode(x) == tags)[mask].float().mean().item():.5f} trans {m.trans.norm().item():.5f}")
