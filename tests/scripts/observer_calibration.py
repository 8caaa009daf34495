"""Calibration for static quantization: the smallest and the largest activation of several batches in buffers."""

import torch
from torch import nn


class MinMax(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    def forward(self, x):
        self.low.copy_(torch.minimum(self.low, x.min()))
        self.high.copy_(torch.maximum(self.high, x.max()))
        return x


torch.manual_seed(0)
x = torch.randn(32, 4)
model = nn.Sequential(nn.Linear(4, 4), MinMax()).eval()
with torch.no_grad():
    for batch in x.split(8):
        model(batch)
        print(f"{model[1].low.item():.6f} {model[1].high.item():.6f}")
