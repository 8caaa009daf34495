"""examples/cnn.py, ported to DistributedDataParallel by hand, for the comparison in benchmarks/cost.py.

    torchrun --nproc-per-node 2 benchmarks/cnn_ddp.py

The port edits the process group, the model's wrapper, the sampler and its epoch, the batch of one worker, the metrics,
and the printing rank. As in most ports, the printed loss of a step is rank 0's own, and only the numbers of an epoch
are summed over the workers. That is less work than printing the numbers of a single process.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import pictures
from cnn import CNN


def summed(*numbers: float) -> list[float]:
    together = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(together)
    return together.tolist()


def train(model, loader, optimizer, device, epoch, log_every, rank):
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
        if step % log_every == 0 and rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.6g}")
    total_loss, correct, seen = summed(total_loss, correct, seen)
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
    total_loss, correct, seen = summed(total_loss, correct, seen)
    return total_loss / seen, correct / seen


def main():
    parser = argparse.ArgumentParser(description="Train a small image classifier with DDP.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256, help="global batch size")
    parser.add_argument("--lr", type=float, default=0.015)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--test-size", type=int)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    x, y, x_test, y_test = pictures.load("fashion", None, args.train_size, args.test_size)
    train_set, test_set = TensorDataset(x, y), TensorDataset(x_test, y_test)
    sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size // world, sampler=sampler)
    test_loader = DataLoader(test_set, 500 // world, sampler=DistributedSampler(test_set, shuffle=False))

    model = DistributedDataParallel(CNN(x.shape[1], x.shape[2], 10, 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        loss, accuracy = train(model, train_loader, optimizer, "cpu", epoch, args.log_every, rank)
        test_loss, test_accuracy = test(model, test_loader, "cpu")
        if rank == 0:
            print(
                f"epoch {epoch} loss {loss:.6g} accuracy {accuracy:.6g} "
                f"test loss {test_loss:.6g} test accuracy {test_accuracy:.6g}"
            )
    sys.stdout.flush()
    os._exit(0)  # Gloo sometimes hangs in its teardown under DDP


if __name__ == "__main__":
    main()
