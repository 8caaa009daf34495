"""Gradient accumulation, clipping, a learning-rate schedule, and a checkpoint after every epoch.

python examples/accumulate.py
paceline run -n 2 examples/accumulate.py

python examples/accumulate.py --epochs 2 --stop-after 1                 # stop early …
python examples/accumulate.py --epochs 2 --resume accumulate.pt         # … and continue from the checkpoint
python examples/accumulate.py --data DIR                                # the real CIFAR-10
"""

import argparse

import pictures
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.GroupNorm(4, 32),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.GroupNorm(8, 64),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 10),
    )


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
    parser = argparse.ArgumentParser(description="Train with accumulated and clipped gradients.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="samples of one backward pass")
    parser.add_argument("--accumulate", type=int, default=4, help="backward passes per optimizer step")
    parser.add_argument("--clip", type=float, default=1.0, help="maximum gradient norm")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument(
        "--checkpoint", metavar="FILE", default="accumulate.pt", help="checkpoint to write after every epoch"
    )
    parser.add_argument("--resume", metavar="FILE", help="checkpoint to continue from")
    parser.add_argument("--stop-after", type=int, metavar="EPOCH", help="last epoch of this run")
    parser.add_argument("--data", metavar="DIR", help="folder of the real data sets; default: drawn pictures")
    parser.add_argument("--train-size", type=int, help="number of training images")
    parser.add_argument("--test-size", type=int, help="number of test images")
    parser.add_argument("--log-every", type=int, default=5, help="steps between two printed losses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    x, y, x_test, y_test = pictures.load(
        "cifar", args.data, args.train_size, args.test_size, draw_train=3000, draw_test=1000
    )
    train_loader = DataLoader(TensorDataset(x, y), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(x_test, y_test), 500)
    steps_per_epoch = -(-len(train_loader) // args.accumulate)

    model = make_model().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * steps_per_epoch)
    first_epoch = 1

    if args.resume:
        state = torch.load(args.resume, map_location=args.device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"].cpu())
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, args.epochs + 1):
        model.train()
        total_loss = correct = seen = step = 0
        for i, (images, labels) in enumerate(train_loader, 1):
            images, labels = images.to(args.device), labels.to(args.device)
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            (loss / args.accumulate).backward()
            total_loss += loss.item() * len(labels)
            correct += (logits.argmax(1) == labels).sum().item()
            seen += len(labels)

            if i % args.accumulate == 0 or i == len(train_loader):
                norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                step += 1
                if step % args.log_every == 0:
                    lr = scheduler.get_last_lr()[0]
                    print(f"epoch {epoch} step {step} loss {loss.item():.6g} norm {norm.item():.6g} lr {lr:.6g}")

        test_loss, test_accuracy = test(model, test_loader, args.device)
        print(
            f"epoch {epoch} loss {total_loss / seen:.6g} accuracy {correct / seen:.6g} "
            f"test loss {test_loss:.6g} test accuracy {test_accuracy:.6g}"
        )
        state = {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "random": torch.get_rng_state(),
        }
        torch.save(state, args.checkpoint)
        if epoch == args.stop_after:
            break


if __name__ == "__main__":
    main()
