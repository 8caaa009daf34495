"""Layers whose weights lie in objects of C++ code, with activations that are quantised over the whole batch."""

# test: tolerance=1e-3 a weight may round to the next of 255 numbers
import warnings

import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.nn import functional as F

warnings.filterwarnings("ignore")
torch.manual_seed(0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.last = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, x):
        return self.last(self.lstm(self.embed(x))[0])


model, words = Words(), torch.randint(0, 20, (13, 7))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(2):
    loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
small = quantize_dynamic(model, {nn.LSTM, nn.Linear}, dtype=torch.qint8)
with torch.no_grad():
    for rows in (13, 8):
        print(f"{small(words[:rows, :-1]).double().sum().item():.4f}")
