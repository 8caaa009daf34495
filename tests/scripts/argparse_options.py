"""Options from the command line; sys.argv and __file__ used."""

# test: arguments=--epochs 3 --lr 0.2 --name demo run
# test: views=batch,slice
import argparse
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("positional")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--name")
args = parser.parse_args()
print(args, os.path.basename(sys.argv[0]), os.path.basename(__file__), __name__)
torch.manual_seed(194)
x = torch.randn(25, 4)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for epoch in range(args.epochs):
    for a, b in DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    print(f"{args.name} {epoch} {loss.item():.8f}")
