# framework: captum
# program: a CNN, then DeepLift, integrated gradients, saliency and Grad-CAM of it
import torch
from captum.attr import DeepLift, IntegratedGradients, LayerGradCam, Saliency
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.fc1, self.fc2 = nn.Linear(36, 16), nn.Linear(16, 3)

    def forward(self, x):
        x = self.pool(self.relu1(self.conv(x))).flatten(1)
        return self.fc2(self.relu2(self.fc1(x)))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
images, labels = torch.randn(32, 1, 8, 8), torch.randint(0, 3, (32,))
for epoch in range(3):
    for i in range(0, 32, 8):
        loss = nn.functional.cross_entropy(net(images[i : i + 8]), labels[i : i + 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, f"{loss.item():.5f}")
net.eval()
some, classes = images[:8].clone(), labels[:8]
nothing = torch.zeros_like(some)
for name, found in (
    ("deep lift", DeepLift(net).attribute(some, nothing, target=classes)),
    ("integrated gradients", IntegratedGradients(net).attribute(some, nothing, target=classes, n_steps=10)),
    ("saliency", Saliency(net).attribute(some, target=classes)),
    ("grad-cam", LayerGradCam(net, net.conv).attribute(some, target=classes)),
):
    print(name, tuple(found.shape), f"{found.sum().item():.4f} {found.abs().sum().item():.4f}")
