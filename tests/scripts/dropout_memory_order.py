"""Dropout, inside and outside of modules, on tensors whose rows are not outermost in memory: what attention and recurrent
layers return. Torch draws in the order of memory."""
# test: workers=2,3,5

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Inside(nn.Module):
    """An elementwise function lays one row out anew, and several rows not."""

    def __init__(self):
        super().__init__()
        self.attention, self.dropout, self.out = (
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Dropout(0.5),
            nn.Linear(8, 8),
        )

    def forward(self, x):
        return self.out(self.dropout(torch.relu(self.attention(x, x, x, need_weights=False)[0])))


inside, layer = Inside(), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
attention, recurrent = nn.MultiheadAttention(8, 2, batch_first=True), nn.LSTM(8, 8, batch_first=True)
modules = nn.ModuleList([inside, layer, attention, recurrent])
optimizer = torch.optim.SGD(modules.parameters(), lr=0.1)
for rows in (6, 2, 5):
    x = torch.randn(rows, 7, 8)
    for _ in range(2):
        x = layer(x + inside(x))
        attended = F.dropout(attention(x, x, x, need_weights=False)[0], 0.5)
        out = F.dropout(recurrent(attended)[0], 0.5)
        loss = out.square().mean() + (out * torch.rand_like(out)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9f}", *(f"{p.grad.norm().item():.9f}" for p in modules.parameters()))
        x = x.detach()
