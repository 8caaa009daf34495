"""Trains a small CNN on drawn digits, as scripts for Horovod are written. Images are drawn, nothing is downloaded."""

import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--checkpoint", default="checkpoint-{epoch}.pt")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--fail-on", type=int, default=-1, help="rank that raises in the second epoch")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, kernel_size=5)
        self.fc1 = nn.Linear(6 * 4 * 4, 24)
        self.fc2 = nn.Linear(24, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), dim=1)


def digits(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    images = 0.3 * torch.randn(count, 1, 12, 12, generator=generator)
    for image, label in zip(images, labels.tolist()):
        image[0, label, :] += 1.0
    return TensorDataset(images, labels)


def metric_average(value, name):
    return hvd.allreduce(torch.as_tensor(value, dtype=torch.float64), name=name).item()


def main():
    args = parser.parse_args()

    # 1. Initialise.
    hvd.init()
    # 2. Pin the GPU to the local rank. Seed.
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
    torch.manual_seed(42 + hvd.rank())  # the broadcast makes the weights equal
    torch.set_num_threads(1)

    train_set, test_set = digits(160, seed=1), digits(80, seed=2)
    # 3. Divide the data.
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    test_loader = DataLoader(test_set, batch_size=40, sampler=test_sampler)

    model = Net()
    # 4. Scale the learning rate.
    optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    # 5. Start from the same state.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    # 6. Average the gradients.
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression, op=hvd.Average
    )

    for epoch in range(1, args.epochs + 1):
        model.train()
        train_sampler.set_epoch(epoch)
        for step, (data, target) in enumerate(train_loader):
            if epoch == 2 and args.fail_on == hvd.rank():
                raise OverflowError(f"rank {hvd.rank()} has had enough")
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            mean = metric_average(loss.detach(), "loss")
            if hvd.rank() == 0:
                print(f"epoch {epoch} step {step} loss {mean:.5f}")
        model.eval()
        test_loss = correct = 0.0
        with torch.no_grad():
            for data, target in test_loader:
                output = model(data)
                test_loss += F.nll_loss(output, target, reduction="sum").item()
                correct += output.argmax(1).eq(target).sum().item()
        test_loss = metric_average(test_loss / len(test_sampler), "avg_loss")
        accuracy = metric_average(correct / len(test_sampler), "avg_accuracy")
        if hvd.rank() == 0:
            print(f"test loss {test_loss:.5f} accuracy {accuracy:.4f}")
            torch.save(model.state_dict(), args.checkpoint.format(epoch=epoch))
    print(f"rank {hvd.rank()} of {hvd.size()} is done, {os.path.basename(__file__)}")


if __name__ == "__main__":
    main()
