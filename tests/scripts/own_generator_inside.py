"""The model draws noise per row from a generator that the script made and uses, too."""

# test: workers=2,3
import torch
from torch import nn

generator = torch.Generator().manual_seed(6)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return self.fc(x + 0.1 * torch.randn(x.shape, generator=generator))


torch.manual_seed(320)
x = torch.randn(31, 4)
y = x.sum(1, keepdim=True)
model = Noisy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = torch.randperm(31, generator=generator)[:11]
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {rows[0].item():.1f}")
