"""A script as people write it: a small model, a loader that shuffles and whose last batch is short, a schedule."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(70, 6, dtype=torch.float64)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
epochs, accumulate = int(sys.argv[1]), int(sys.argv[2])
if "--load" in sys.argv:
    saved = torch.load(sys.argv[sys.argv.index("--load") + 1], weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    torch.set_rng_state(saved["random"])
for epoch in range(epochs):
    model.train()
    for number, (a, b) in enumerate(loader, 1):
        (model(a) - b).square().mean().div(accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()
    schedule.step()
    model.eval()
    with torch.no_grad():
        print(epoch, len(loader), (model(x) - y).square().mean().item())
        if "--save" in sys.argv and epoch == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
            }
            torch.save(state | {"random": torch.get_rng_state()}, sys.argv[sys.argv.index("--save") + 1])
if "--restore" in sys.argv:  # the best weights, after training: nothing is trained any more
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
        print("restored", (model(x) - y).square().mean().item())
