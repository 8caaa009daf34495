"""The end of a run, as a person sees it: the cause first, and where all of the time went."""

from __future__ import annotations

import json
import time
from pathlib import Path

from typist import Typist

SLOW = """
import time
import torch

time.sleep(0.3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.2)
        return x

for step in range(12):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
with torch.no_grad():
    torch.nn.Sequential(model, Slow()).eval()(torch.randn(8, 4))
time.sleep(0.4)
"""


def test_a_run_accounts_for_its_whole_wall_clock(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW)
    begun = time.monotonic()
    typed = typist.type(tmp_path, "run", "-n", "1", "--json", "train.py")
    took = time.monotonic() - begun
    clock = json.loads(typed.stdout)["wall_clock"]
    parts = {name: part for name, part in clock.items() if name != "total"}
    assert abs(sum(parts.values()) - clock["total"]) < 0.02
    assert clock["total"] < took
    assert clock["warm_up"] > 0.3  # the script's own set-up
    assert clock["evaluation"] > 0.2  # after the last step
    assert clock["end"] > 0.4
    assert "wall clock" in typed.stderr


def test_a_name_that_is_not_there_is_told_as_python_tells_it(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nlosses = []\nprint(loses)\n")
    typed = typist.type(tmp_path, "run", "-n", "2", "train.py")
    assert typed.returncode == 1
    told = "NameError: name 'loses' is not defined. Did you mean: 'losses'?"
    assert f"\nfailed: worker 0 raised {told}\n" in typed.stderr
    assert "paceline/launch" not in typed.stderr
    assert "ran all of the script" not in typed.stderr
