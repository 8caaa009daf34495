"""Copies, moves, links, archives, touched and compressed files; sizes and times asked for; folders walked."""

# test: workers=2
import gzip
import os
import shutil
import zipfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(253)
x = torch.randn(14, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = Path("runs") / "one"
run.mkdir(parents=True)
for step in range(4):
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save(model.state_dict(), run / f"{step}.pt")
    latest = run / "latest.pt"
    if latest.is_symlink():
        latest.unlink()
    latest.symlink_to(f"{step}.pt")
    print(f"{loss.item():.8f}", latest.exists(), os.path.getsize(latest) > 0)
shutil.copy(run / "3.pt", run / "best.pt")
shutil.copy2(run / "3.pt", run / "second.pt")
shutil.move(str(run / "0.pt"), str(run / "first.pt"))
(run / "1.pt").rename(run / "old.pt")
(run / "2.pt").unlink()
(run / "done").touch()
with gzip.open(run / "log.gz", "wt") as f:
    f.write("compressed\n")
with zipfile.ZipFile(run / "all.zip", "w") as z:
    z.write(run / "best.pt", "best.pt")
shutil.copytree(run, "backup")
print(sorted(name for _, _, names in os.walk("runs") for name in names), zipfile.ZipFile(run / "all.zip").namelist())
print(gzip.open("backup/log.gz", "rt").read().strip(), os.path.getmtime(run / "done") > 0)
model.load_state_dict(torch.load("backup/best.pt"))
print(f"{nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item():.8f}")
