"""A Python list as data set, random.shuffle for order, torch.stack for batches."""

import random

import torch

random.seed(31)
torch.manual_seed(31)
pairs = [(torch.randn(3), i % 3) for i in range(31)]
model = torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.SiLU(), torch.nn.Linear(7, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.4)
for epoch in range(3):
    random.shuffle(pairs)
    correct = 0
    while_loss = []
    for k in range(0, len(pairs), 7):
        chunk = pairs[k : k + 7]
        x = torch.stack([c[0] for c in chunk])
        y = torch.tensor([c[1] for c in chunk])
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        correct += int((out.argmax(1) == y).sum())
        while_loss.append(float(loss))
    print(epoch, ["%.8f" % v for v in while_loss], correct)
