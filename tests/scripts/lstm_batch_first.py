"""A bare nn.LSTM as the outermost module: (out, (h, c)), where h and c have the batch in dimension 1."""

# test: right-or-refused=outputs whose batch is not their first dimension
import torch
from torch import nn

torch.manual_seed(140)
lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
head = nn.Linear(6, 2)
optimizer = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.3)
x = torch.randn(14, 5, 4)
y = (x.sum((1, 2)) > 0).long()
for step in range(8):
    out, (h, c) = lstm(x)
    loss = nn.functional.cross_entropy(head(h[-1]), y) + 0.01 * c.pow(2).mean() + 0.01 * out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {tuple(h.shape)} {h.norm().item():.7f}")
