"""Stops half-way with a checkpoint, builds everything anew, resumes from the file, goes on."""

# test: views=batch,slice
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PATH = "checkpoints/last.pt"


def train(until):
    torch.manual_seed(180)
    x = torch.randn(34, 5)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    start = 0
    if os.path.exists(PATH):
        state = torch.load(PATH)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
        start = state["epoch"]
        print("resumed at epoch", start)
    for epoch in range(start, until):
        for a, b in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            print(f"{epoch} {loss.item():.8f}")
        scheduler.step()
        os.makedirs(os.path.dirname(PATH), exist_ok=True)
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "rng": torch.get_rng_state(),
                "epoch": epoch + 1,
            },
            PATH,
        )


train(2)
train(4)
