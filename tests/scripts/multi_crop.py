"""The model takes a list of crops of different sizes, and returns a list."""

# test: workers=2
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 2)

    def forward(self, crops):
        return [self.head(torch.relu(self.conv(c)).mean((2, 3))) for c in crops]


torch.manual_seed(255)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
images = torch.rand(11, 1, 10, 10)
target = (images.mean((1, 2, 3)) > 0.5).long()
for step in range(5):
    outputs = model([images, images[:, :, 2:8, 2:8], images[:, :, :5, :5]])
    loss = sum(nn.functional.cross_entropy(o, target) for o in outputs) / len(outputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {len(outputs)} {outputs[1].std().item():.8f}")
