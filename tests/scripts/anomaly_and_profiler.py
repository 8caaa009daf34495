"""detect_anomaly, torch.profiler and set_grad_enabled around the loop; deterministic algorithms."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.use_deterministic_algorithms(True)
torch.manual_seed(227)
x = torch.randn(21, 4)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with (
    torch.autograd.set_detect_anomaly(True),
    torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
):
    for step in range(6):
        for phase in ("train", "valid"):
            model.train(phase == "train")
            rows = slice(0, 14) if phase == "train" else slice(14, 21)
            with torch.set_grad_enabled(phase == "train"):
                loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"{phase} {loss.item():.8f}")
print("profiled", len(profile.key_averages()) > 5)
