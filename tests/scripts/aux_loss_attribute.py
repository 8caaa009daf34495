"""A mixture of experts that leaves its balancing loss in an attribute, for the loop to add."""

# test: right-or-refused=a tensor leaves the model past its outputs
import torch
from torch import nn


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(5, 3), nn.ModuleList(nn.Linear(5, 1) for _ in range(3))

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        self.aux_loss = weights.mean(0).pow(2).sum()
        return sum(weights[:, i : i + 1] * e(x) for i, e in enumerate(self.experts))


torch.manual_seed(152)
x = torch.randn(22, 5)
y = x.abs().sum(1, keepdim=True)
model = MoE()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    out = model(x)
    loss = nn.functional.mse_loss(out, y) + 0.5 * model.aux_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} aux {model.aux_loss.item():.8f}")
