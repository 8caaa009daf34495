"""A running maximum in a buffer, as quantization observers keep it: one calibration batch, whose last row decides."""

import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.register_buffer("top", torch.tensor(start))

    def forward(self, x):
        self.top.copy_(torch.maximum(self.top, x.detach().max()))
        return x


torch.manual_seed(0)
x = torch.randn(32, 4)
x[31, 0] = 9.0
for start in (float("-inf"), 0.0):
    for mode in ("eval, no_grad", "eval", "train"):
        model = nn.Sequential(nn.Linear(4, 4), Observer(start))
        nn.init.eye_(model[0].weight)
        nn.init.zeros_(model[0].bias)
        model.train(mode == "train")
        with torch.set_grad_enabled("no_grad" not in mode):
            model(x)
        print(f"start {start} {mode}: {model[1].top.item():.4f}")
