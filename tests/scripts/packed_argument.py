"""A PackedSequence goes into a bare nn.GRU, and one comes out."""

# test: workers=2
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

torch.manual_seed(259)
gru, out = nn.GRU(3, 5), nn.Linear(5, 1)
optimizer = torch.optim.SGD([*gru.parameters(), *out.parameters()], lr=0.2)
for step in range(5):
    sequences = [torch.randn(n, 3) for n in (5, 4, 4, 2, 1, 1)]
    packed = pack_sequence(sequences)
    states, last = gru(packed)
    padded, lengths = pad_packed_sequence(states, batch_first=True)
    target = torch.stack([s.sum() for s in sequences])
    loss = nn.functional.mse_loss(out(last[-1]).squeeze(1), target) + 0.01 * padded.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {lengths.tolist()}")
