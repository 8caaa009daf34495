"""The character RNN of tutorials: state carried between batches, detached, output flattened."""

import torch
from torch import nn


class CharRNN(nn.Module):
    def __init__(self, V=12, H=16):
        super().__init__()
        self.e, self.l, self.o = nn.Embedding(V, 8), nn.LSTM(8, H, 2, batch_first=True), nn.Linear(H, V)
        self.H = H

    def forward(self, x, hidden):
        r, hidden = self.l(self.e(x), hidden)
        return self.o(r.contiguous().view(-1, self.H)), hidden

    def init_hidden(self, b):
        w = next(self.parameters()).data
        return (w.new_zeros(2, b, self.H), w.new_zeros(2, b, self.H))


torch.manual_seed(0)
text = (torch.arange(6 * 60) * 7 % 12 + (torch.arange(360) // 5) % 3) % 12
arr = text.view(6, 60)
net = CharRNN()
o = torch.optim.SGD(net.parameters(), lr=1.0)
for e in range(2):
    h = net.init_hidden(6)
    for k in range(0, 59 - 7, 7):
        x, y = arr[:, k : k + 7], arr[:, k + 1 : k + 8]
        h = tuple(t.data for t in h)
        net.zero_grad()
        out, h = net(x, h)
        loss = nn.functional.cross_entropy(out, y.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5)
        o.step()
    print(e, f"{loss.item():.6f} {h[0].norm().item():.6f}")
net.eval()
h = net.init_hidden(1)
c = torch.tensor([[3]])
sampled = []
for _ in range(12):
    out, h = net(c, h)
    c = out.argmax(1, keepdim=True)
    sampled.append(c.item())
print(sampled)
