"""The model pools over the batch: a set function whose output has no batch dimension."""

# test: right-or-refused=samples are mixed inside the model
import torch
from torch import nn


class DeepSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi, self.rho = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, elements):
        return self.rho(torch.relu(self.phi(elements)).max(0).values)


torch.manual_seed(158)
model = DeepSet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    elements = torch.randn(9, 3)
    loss = (model(elements) - elements.norm(dim=1).max()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
