"""Logs in CSV, JSON lines, JSON, pickle and numpy files; read back at the end."""

import csv
import json
import pickle

import numpy as np
import torch
from torch import nn

torch.manual_seed(186)
x = torch.randn(21, 4)
y = x.sum(1, keepdim=True).tanh()
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
history = []
with open("log.csv", "w", newline="") as file, open("log.jsonl", "w") as lines:
    writer = csv.DictWriter(file, ["step", "loss"])
    writer.writeheader()
    for step in range(8):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        writer.writerow({"step": step, "loss": f"{loss.item():.8f}"})
        lines.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        lines.flush()
with open("history.json", "w") as file:
    json.dump(history, file)
with open("history.pkl", "wb") as file:
    pickle.dump(history, file)
np.save("history.npy", np.array(history))
np.savetxt("history.txt", np.array(history))
print(len(list(csv.DictReader(open("log.csv")))), [json.loads(line)["loss"] for line in open("log.jsonl")][-1])
print(np.allclose(np.load("history.npy"), json.load(open("history.json"))), pickle.load(open("history.pkl", "rb"))[0])
