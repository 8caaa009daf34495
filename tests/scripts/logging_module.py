"""The logging module to a file and to standard output; warnings; tqdm-like carriage returns; print(file=)."""

import logging
import sys

import torch
from torch import nn

logging.basicConfig(
    level=logging.INFO,
    format="%(levelname)s %(message)s",
    handlers=[logging.FileHandler("train.log"), logging.StreamHandler(sys.stdout)],
)
log = logging.getLogger(__name__)
torch.manual_seed(187)
x = torch.randn(18, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
notes = open("notes.txt", "w")
for step in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.info("step %d loss %.8f", step, loss.item())
    print("note", step, file=notes, flush=True)
    sys.stdout.write(f"\rprogress {step}")
    sys.stdout.flush()
sys.stdout.write("\n")
notes.close()
print(open("notes.txt").read().splitlines(), len(open("train.log").readlines()))
