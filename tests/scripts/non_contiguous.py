"""Inputs and outputs that aren't contiguous: transposed, strided, expanded, channels_last."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x, bias):
        h = torch.relu(self.conv(x)).permute(0, 2, 3, 1)
        return self.fc(h).transpose(1, 3) + bias[:, None, None, None]


torch.manual_seed(215)
model = Net().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
images = torch.randn(6, 6, 3, 20).permute(3, 2, 0, 1)[::2].to(memory_format=torch.channels_last)
bias = torch.tensor([0.5]).expand(10)
for step in range(6):
    out = model(images, bias)
    loss = (out - images[:, :2, :4, :4]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {tuple(out.shape)} {out[:, 0].std().item():.8f}")
