"""A loss module with a parameter of its own: class-wise cross entropy with a learned temperature."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TemperedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, logits, target):
        return nn.functional.cross_entropy(logits * self.log_temperature.exp(), target)


torch.manual_seed(56)
x = torch.randn(30, 5)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=7, shuffle=True)
model, criterion = nn.Linear(5, 3), TemperedLoss()
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": criterion.parameters(), "lr": 0.5}], lr=0.1)
for epoch in range(3):
    for a, b in loader:
        loss = criterion(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f} {criterion.log_temperature.item():.8f}")
