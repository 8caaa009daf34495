"""Packed sequences inside models: sorted or not, time first or batch first, several layers, both directions, states that
are given, padding to a length, and batches in which no sequence is as long as the padding."""
# test: workers=2,3,5

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.set_default_dtype(torch.float64)
torch.manual_seed(26)


class Sorted(nn.Module):
    """Time first, sorted by the script, LSTM in both directions."""

    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
        self.second, self.out = nn.RNN(8, 5), nn.Linear(13, 1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x.transpose(0, 1), lengths)
        steps, (h, c) = self.first(packed)
        steps, last = self.second(steps)
        steps, counts = pad_packed_sequence(steps, padding_value=0.5, total_length=9)
        pooled = steps.sum(0) / counts[:, None] + (c[0] - h[0]).sum(1, keepdim=True)
        return self.out(torch.cat([pooled, last[-1], h[-1, :, :3]], 1)).squeeze(1), steps


class Unsorted(nn.Module):
    """Batch first, in any order, GRU with an initial state from the samples."""

    def __init__(self):
        super().__init__()
        self.start, self.gru, self.out = nn.Linear(3, 6), nn.GRU(3, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        steps, _ = self.gru(packed, self.start(x[:, 0])[None])
        steps, counts = pad_packed_sequence(steps, batch_first=True)
        return self.out(steps[torch.arange(len(x)), counts - 1]).squeeze(1), steps


for model in (Sorted(), Unsorted()):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        lengths = torch.randint(1, 9 - step % 3, (7,))
        if isinstance(model, Sorted):
            lengths = lengths.sort(descending=True).values
        x = torch.randn(7, 8, 3)
        found, steps = model(x, lengths)
        loss = (found - x.sum((1, 2)) / 8).pow(2).mean() + steps.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step} {loss.item():.9f} {tuple(steps.shape)}")
    model.eval()
    with torch.no_grad():
        print(f"evaluation {model(x, lengths)[0].sum().item():.9f}")
