"""Random numbers of the script itself for outputs that are not contiguous: torch draws them in the order of the memory."""

import torch
import torch.nn.functional as F
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
lstm = nn.LSTM(6, 8, batch_first=True)
attention = nn.MultiheadAttention(8, 2, batch_first=True)
conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
layer = nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True)
parameters = [p for module in (lstm, attention, conv, layer) for p in module.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
for batch in (7, 7, 5, 3, 2, 11):
    h, _ = lstm(torch.randn(batch, 4, 6))
    h = F.dropout(h, 0.4)
    h = h + F.dropout(attention(h, h, h, need_weights=False)[0], 0.3)
    h = layer(h)  # with one row on a worker, the order of its memory is not known there
    image = conv(torch.randn(batch, 3, 5, 5).to(memory_format=torch.channels_last))
    noisy = image + 0.1 * torch.randn_like(image)
    weight = torch.linspace(-1, 1, 8)
    loss = (h * weight).sum(-1).square().mean() + F.dropout(noisy, 0.2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{batch} {loss.item():.9f} {image.stride() == image.contiguous().stride()}")
print(f"{sum(p.abs().sum() for p in parameters).item():.9f}")
