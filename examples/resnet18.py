"""A ResNet-18 in the ImageNet layout, with batch norm, on 32x32 pictures of CIFAR-10's shape.

python examples/resnet18.py
paceline run -n 2 examples/resnet18.py                   # batch norm over the whole batch, as in one process
paceline run -n 2 --mod bn=local examples/resnet18.py    # each worker normalises its own slice, as under DDP

python examples/resnet18.py --epochs 1 --train-size 500 --batch-size 64    # a few seconds
python examples/resnet18.py --data DIR --epochs 20                         # the real CIFAR-10
"""

import argparse

import pictures
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.bn2.weight)  # a block starts as its shortcut, which stabilises the first steps
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential(
            *(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1)),
            *(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1)),
            *(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1)),
            *(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1)),
        )
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.stages(self.stem(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def train(model, loader, optimizer, device, epoch, log_every):
    model.train()
    total_loss = correct = seen = 0
    for step, (images, labels) in enumerate(loader, 1):
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        total_loss += loss.item() * len(labels)
        correct += (logits.argmax(1) == labels).sum().item()
        seen += len(labels)
        if step % log_every == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.6g}")
    return total_loss / seen, correct / seen


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    total_loss = correct = seen = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        total_loss += F.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(1) == labels).sum().item()
        seen += len(labels)
    return total_loss / seen, correct / seen


def main():
    parser = argparse.ArgumentParser(description="Train a ResNet-18 on small pictures.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--data", metavar="DIR", help="folder of the real data sets; default: drawn pictures")
    parser.add_argument("--train-size", type=int, help="number of training images")
    parser.add_argument("--test-size", type=int, help="number of test images")
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=5, help="steps between two printed losses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    x, y, x_test, y_test = pictures.load(
        "cifar", args.data, args.train_size, args.test_size, draw_train=2000, draw_test=500
    )
    train_loader = DataLoader(TensorDataset(x, y), args.batch_size, shuffle=True, num_workers=args.loader_workers)
    test_loader = DataLoader(TensorDataset(x_test, y_test), 250, num_workers=args.loader_workers)

    model = ResNet18(classes=10).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(x)} training images")

    for epoch in range(1, args.epochs + 1):
        loss, accuracy = train(model, train_loader, optimizer, args.device, epoch, args.log_every)
        test_loss, test_accuracy = test(model, test_loader, args.device)
        print(
            f"epoch {epoch} loss {loss:.6g} accuracy {accuracy:.6g} "
            f"test loss {test_loss:.6g} test accuracy {test_accuracy:.6g}"
        )


if __name__ == "__main__":
    main()
