"""Checkpoints in safetensors, a log in HDF5 and a table in Parquet: written in native code, past Python's open."""

import os

import h5py
import polars
import torch
from safetensors.torch import load_file, save_file
from torch import nn

torch.manual_seed(183)
x = torch.randn(20, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
os.makedirs("out")
losses = []
for step in range(1, 7):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print(f"{step} {loss.item():.8f}")
    save_file(model.state_dict(), f"out/step{step}.safetensors")
    with h5py.File("out/log.h5", "a") as log:
        log[f"weight{step}"] = model.weight.detach().numpy()
    if os.path.exists("out/step2.safetensors"):
        os.remove("out/step2.safetensors")
polars.DataFrame({"loss": losses}).write_parquet("out/losses.parquet")
print(sorted(os.listdir("out")))
print(f"read back: {polars.read_parquet('out/losses.parquet')['loss'].sum():.8f}")
with h5py.File("out/log.h5") as log:
    print(f"logged: {len(log)} {log['weight3'][:].sum():.8f}")
model.load_state_dict(load_file("out/step3.safetensors"))
print(f"older: {nn.functional.mse_loss(model(x), y).item():.8f}")
