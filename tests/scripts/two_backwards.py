"""Two losses of one forward, two backwards with retain_graph."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.kind, self.size = nn.Linear(5, 12), nn.Linear(12, 3), nn.Linear(12, 1)

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return self.kind(h), self.size(h).squeeze(1)


torch.manual_seed(78)
x = torch.randn(31, 5)
data = TensorDataset(x, x[:, :3].argmax(1), x.norm(dim=1))
model = TwoHeads()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, kind, size in DataLoader(data, batch_size=9, shuffle=True):
        kinds, sizes = model(a)
        loss1 = nn.functional.cross_entropy(kinds, kind)
        loss2 = nn.functional.mse_loss(sizes, size)
        optimizer.zero_grad()
        loss1.backward(retain_graph=True)
        between = model.trunk.weight.grad.norm().item()
        loss2.backward()
        optimizer.step()
        print(
            f"{loss1.item():.8f} {loss2.item():.8f} trunk {between:.8f} then {model.trunk.weight.grad.norm().item():.8f}"
        )
