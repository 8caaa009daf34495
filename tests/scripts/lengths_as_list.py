"""A GRU over padded sequences; the lengths are a Python list."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(20, 6, padding_idx=0), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, lengths):
        p = pack_padded_sequence(self.e(x), lengths, batch_first=True, enforce_sorted=False)
        return self.o(self.r(p)[1][0])


torch.manual_seed(0)
data = [torch.randint(1, 20, (int(n),)) for n in torch.randint(2, 9, (40,))]
data = [(t, int(t.float().mean() > 10)) for t in data]


def collate(b):
    return pad_sequence([t for t, _ in b], batch_first=True), [len(t) for t, _ in b], torch.tensor([y for _, y in b])


m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.3)
for e in range(2):
    for x, lengths, y in DataLoader(data, batch_size=10, shuffle=True, collate_fn=collate):
        loss = F.cross_entropy(m(x, lengths), y)
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.6f}")
