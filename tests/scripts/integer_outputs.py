"""Outputs of other types: integer predictions, boolean masks, None, strings, beside the logits."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        logits = self.fc(x)
        return {
            "logits": logits,
            "label": logits.argmax(1),
            "sure": logits.softmax(1).max(1).values > 0.5,
            "extra": None,
            "kind": "demo",
            "sizes": [3, 5],
        }


torch.manual_seed(214)
x = torch.randn(23, 5)
y = x[:, :3].argmax(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(8):
    out = model(x)
    loss = nn.functional.cross_entropy(out["logits"], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(
        f"{loss.item():.8f} right {(out['label'] == y).sum().item()} sure {out['sure'].sum().item()} {out['extra']} {out['kind']} {out['sizes']} {out['label'].dtype}"
    )
