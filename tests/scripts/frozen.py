"""A frozen backbone, then unfrozen in the middle of training with add_param_group."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(6, 12), nn.Linear(12, 2)

    def forward(self, x):
        return self.head(torch.relu(self.backbone(x)))


torch.manual_seed(118)
x = torch.randn(30, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
model = Net()
model.backbone.requires_grad_(False)
optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.3)
for epoch in range(4):
    if epoch == 2:
        model.backbone.requires_grad_(True)
        optimizer.add_param_group({"params": model.backbone.parameters(), "lr": 0.1})
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    print(
        f"{epoch} {loss.item():.8f} backbone {model.backbone.weight.norm().item():.8f} {model.backbone.weight.grad is None}"
    )
