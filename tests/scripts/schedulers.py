"""StepLR, CosineAnnealingLR, LambdaLR, OneCycleLR and SequentialLR, with the rates printed."""

# test: views=batch,slice
import torch
from torch import nn
from torch.optim import lr_scheduler as S
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(101)
x = torch.randn(24, 3)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())


def sequential(o):
    return S.SequentialLR(o, [S.LinearLR(o, 0.1, total_iters=3), S.ExponentialLR(o, 0.8)], milestones=[3])


for make in (
    lambda o: S.StepLR(o, 2, 0.5),
    lambda o: S.CosineAnnealingLR(o, 9),
    lambda o: S.LambdaLR(o, lambda k: 1 / (1 + k)),
    lambda o: S.OneCycleLR(o, max_lr=0.2, total_steps=9),
    sequential,
):
    model = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    for epoch in range(3):
        for a, b in DataLoader(data, batch_size=9, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"{type(scheduler).__name__} rate {scheduler.get_last_lr()[0]:.8f} loss {loss.item():.8f}")
