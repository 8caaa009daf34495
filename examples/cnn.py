"""An image classifier: two convolutions and two linear layers, on pictures of Fashion-MNIST's or CIFAR-10's shape.

python examples/cnn.py
paceline run -n 2 examples/cnn.py

python examples/cnn.py --epochs 1 --train-size 2000          # a few seconds
python examples/cnn.py --data DIR                            # the real Fashion-MNIST
python examples/cnn.py --data DIR --shape cifar --epochs 10  # the real CIFAR-10
"""

import argparse

import pictures
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class CNN(nn.Module):
    def __init__(self, channels, size, classes, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(64 * (size // 4) ** 2, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        x = F.max_pool2d(F.gelu(self.conv1(x)), 2)
        x = F.max_pool2d(F.gelu(self.conv2(x)), 2)
        x = self.dropout(F.gelu(self.fc1(x.flatten(1))))
        return self.fc2(x)


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
    parser = argparse.ArgumentParser(description="Train a small image classifier.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.015)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--shape", choices=("fashion", "cifar"), default="fashion")
    parser.add_argument("--data", metavar="DIR", help="folder of the real data sets; default: drawn pictures")
    parser.add_argument("--train-size", type=int, help="number of training images")
    parser.add_argument("--test-size", type=int, help="number of test images")
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    x, y, x_test, y_test = pictures.load(args.shape, args.data, args.train_size, args.test_size)
    train_loader = DataLoader(TensorDataset(x, y), args.batch_size, shuffle=True, num_workers=args.loader_workers)
    test_loader = DataLoader(TensorDataset(x_test, y_test), 500, num_workers=args.loader_workers)

    model = CNN(x.shape[1], x.shape[2], 10, args.dropout).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
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
