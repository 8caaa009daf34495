"""The model returns its loss; the batch has 7 rows, which no N divides: slices weigh differently."""

# test: workers=2,3,5
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x, y):
        out = self.fc(x)
        return {"loss": nn.functional.mse_loss(out, y), "bias": self.fc.bias.pow(2).sum(), "out": out}


torch.manual_seed(268)
x = torch.randn(7, 3) * torch.linspace(0.1, 3, 7)[:, None]
y = x.sum(1, keepdim=True)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    result = model(x, y)
    loss = result["loss"] + 0.5 * result["bias"] + 0.1 * result["out"].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {model.fc.weight.grad.norm().item():.8f} {model.fc.bias.grad.item():.8f}")
