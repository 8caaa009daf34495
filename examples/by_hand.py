"""No DataLoader: the loop slices its batches from tensors, and adds a weight penalty to the loss.

python examples/by_hand.py
paceline run -n 2 examples/by_hand.py

python examples/by_hand.py --data DIR --epochs 10          # the real Fashion-MNIST
"""

import argparse

import pictures
import torch
import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x):
        x = F.gelu(self.fc1(x.flatten(1)))
        x = F.gelu(self.fc2(x))
        return self.fc3(x)


def main():
    parser = argparse.ArgumentParser(description="Train on batches that are sliced by hand.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--penalty", type=float, default=1e-3, help="factor of the sum of squared weights")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--data", metavar="DIR", help="folder of the real data sets; default: drawn pictures")
    parser.add_argument("--train-size", type=int, help="number of training images")
    parser.add_argument("--test-size", type=int, help="number of test images")
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    X, Y, X_test, Y_test = (
        tensor.to(args.device) for tensor in pictures.load("fashion", args.data, args.train_size, args.test_size)
    )
    model = MLP(28 * 28, args.hidden, 10).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(X)).to(args.device)
        total_loss = correct = 0
        for step, i in enumerate(range(0, len(X), args.batch_size), 1):
            batch = order[i : i + args.batch_size]
            x, y = X[batch], Y[batch]
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            penalty = args.penalty * sum(p.pow(2).sum() for p in model.parameters() if p.dim() > 1)
            optimizer.zero_grad()
            (loss + penalty).backward()
            optimizer.step()

            total_loss += loss.item() * len(y)
            correct += (logits.argmax(1) == y).sum().item()
            if step % args.log_every == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.6g} penalty {penalty.item():.6g}")

        with torch.no_grad():
            logits = torch.cat([model(X_test[i : i + 500]) for i in range(0, len(X_test), 500)])
        test_loss = F.cross_entropy(logits, Y_test).item()
        test_accuracy = (logits.argmax(1) == Y_test).float().mean().item()
        print(
            f"epoch {epoch} loss {total_loss / len(X):.6g} accuracy {correct / len(X):.6g} "
            f"test loss {test_loss:.6g} test accuracy {test_accuracy:.6g}"
        )


if __name__ == "__main__":
    main()
