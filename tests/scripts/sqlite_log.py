"""Metrics in an SQLite file, which C code writes."""

# test: right-or-refused=a file that isn't written through Python
# test: workers=2
import sqlite3

import torch
from torch import nn

torch.manual_seed(254)
database = sqlite3.connect("metrics.db")
database.execute("create table metrics (step integer primary key, loss real)")
x = torch.randn(14, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    database.execute("insert into metrics values (?, ?)", (step, loss.item()))
    database.commit()
    print(f"{loss.item():.8f}")
print(database.execute("select count(*) from metrics").fetchone()[0])
