"""Packed sequences that are made outside the models: from sorted and unsorted samples, with a state beside them, of which
the output is packed and unpacked again."""
# test: workers=2,3,5

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

torch.set_default_dtype(torch.float64)
torch.manual_seed(27)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(4, 5, batch_first=True, bidirectional=True), nn.Linear(5, 1)

    def forward(self, words, start):
        steps, last = self.gru(words, start)
        return self.out(last[-1]).squeeze(1), steps


embed, lstm, reader = nn.Linear(3, 4), nn.LSTM(4, 4), Reader()
parameters = [*embed.parameters(), *lstm.parameters(), *reader.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for step in range(6):
    lengths = torch.randint(1, 7, (8,))
    x = torch.randn(8, 7, 3)
    if step % 2:
        packed = pack_padded_sequence(embed(x), lengths, batch_first=True, enforce_sorted=False)
    else:
        lengths = lengths.sort(descending=True).values
        packed = pack_sequence([embed(row[:n]) for row, n in zip(x, lengths)])
    packed, (h, c) = lstm(packed)
    found, steps = reader(packed, torch.stack([h[0, :, :1].expand(-1, 5), c[0, :, :1].expand(-1, 5)]).contiguous())
    assert isinstance(steps, PackedSequence)
    padded, counts = pad_packed_sequence(steps, batch_first=True)
    loss = (found - x[:, 0].sum(1)).pow(2).mean() + steps.data.pow(2).mean() + padded[:, 0].sum() * 0.01
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.9f} {counts.tolist()} {steps.batch_sizes.tolist()} {h.sum().item():.9f}")
