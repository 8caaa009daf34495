"""Blocks of convolution, instance norm and an activation in place, as in nets for medical images: autograd writes to a
view. The model is split as a whole."""

# test: workers=2,3
import torch
from torch import nn


class Block(nn.Sequential):
    def __init__(self, into, out):
        super().__init__(
            nn.Conv3d(into, out, 3, padding=1),
            nn.InstanceNorm3d(out, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )


torch.manual_seed(250)
net = nn.Sequential(Block(1, 4), nn.MaxPool3d(2), Block(4, 6), nn.Conv3d(6, 3, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for _ in range(6):
    images, labels = torch.randn(7, 1, 6, 6, 6), torch.randint(0, 3, (7, 3, 3, 3))
    loss = nn.functional.cross_entropy(net(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
