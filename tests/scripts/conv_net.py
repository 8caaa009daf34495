"""An image classifier with convolutions and pooling; functions train() and test() as in the tutorials."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(32, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        return F.log_softmax(self.fc(torch.flatten(F.max_pool2d(x, 2), 1)), dim=1)


def train(model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        print(
            "Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.7f}".format(
                epoch, batch_idx * len(data), len(loader.dataset), 100.0 * batch_idx / len(loader), loss.item()
            )
        )


def test(model, loader):
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (
                output.argmax(dim=1, keepdim=True).eq(target.view_as(output.argmax(dim=1, keepdim=True))).sum().item()
            )
    print(
        "Test: Average loss: {:.7f}, Accuracy: {}/{}".format(
            test_loss / len(loader.dataset), correct, len(loader.dataset)
        )
    )


torch.manual_seed(1)
target = torch.randint(0, 4, (48,))
images = torch.rand(48, 1, 14, 14) * 0.3
for i, t in enumerate(target):
    images[i, 0, 3 * t : 3 * t + 3] += 1
model = Net()
optimizer = optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
for epoch in range(1, 6):
    train(model, DataLoader(TensorDataset(images[:32], target[:32]), batch_size=10, shuffle=True), optimizer, epoch)
    test(model, DataLoader(TensorDataset(images[32:], target[32:]), batch_size=7))
