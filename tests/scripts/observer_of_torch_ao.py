"""torch.ao's MinMaxObserver in front of a layer: calibration, then the scale and the zero point."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")

from torch.ao.quantization.observer import MinMaxObserver


class Observed(nn.Module):
    def __init__(self):
        super().__init__()
        self.observer, self.layer = MinMaxObserver(), nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(self.observer(x))


torch.manual_seed(0)
x = torch.randn(64, 8) + torch.arange(64)[:, None] / 8
model = Observed().eval()
for call in range(3):
    with torch.no_grad():
        model(x + call)
    observer = model.observer
    scale, zero_point = observer.calculate_qparams()
    print(f"{observer.min_val.item():.4f} {observer.max_val.item():.4f} {scale.item():.6f} {zero_point.item()}")
