# framework: tensorboard
# program: `SummaryWriter`: scalars, histograms of weights and gradients, `add_graph`, `add_hparams`
import glob

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
writer = SummaryWriter("runs/demo")
model = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 3))
x, y = torch.randn(72, 7), torch.randint(0, 3, (72,))
writer.add_graph(model, x[:4])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step = 0
for epoch in range(3):
    for i in range(0, 72, 24):
        loss = nn.functional.cross_entropy(model(x[i : i + 24]), y[i : i + 24])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss/train", loss, step)
        step += 1
    for name, p in model.named_parameters():
        writer.add_histogram(name, p, epoch)
        writer.add_histogram(f"{name}.grad", p.grad, epoch)
    print(f"epoch {epoch} {loss.item():.6f}")
writer.add_hparams({"lr": 1e-2}, {"hparam/loss": loss.item()})
writer.close()
print(len(glob.glob("runs/demo/events*")), "event file")
events = EventAccumulator("runs/demo")
events.Reload()
print([round(e.value, 6) for e in events.Scalars("loss/train")])
