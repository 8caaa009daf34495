"""A script finds what plain Python shows it: no rank, one GPU, no process group. With `--as torchrun` it finds what
torchrun shows it."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plain import PlainPython

from paceline.launch.worker import process
from paceline.record import read_run
from paceline.script import own_gpu
from paceline.settings import LAUNCHER_VARIABLES, RunSettings, WorkerSettings

Play = Callable[..., Any]

# Two branches, an autocast context of its own and no DataLoader, as in nanoGPT's train.py.
TWO_BRANCHES = f"""
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

print("variables", sorted(name for name in os.environ if name in {LAUNCHER_VARIABLES!r}))
print("groups", dist.is_available(), dist.is_initialized(), dist.is_torchelastic_launched())
print("GPUs", torch.cuda.device_count() <= 1)

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    dist.init_process_group(backend="gloo")
    rank, accumulate = int(os.environ["RANK"]), 4 // int(os.environ["WORLD_SIZE"])
else:
    rank, accumulate = 0, 4
torch.manual_seed(1337 + rank)
data = torch.randint(17, (2000,))
context = torch.amp.autocast(device_type="cpu", dtype=torch.bfloat16)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(17, 24), nn.Linear(24, 24), nn.Linear(24, 17, bias=False)

    def forward(self, x, y=None):
        logits = self.head(F.gelu(self.mix(self.words(x))))
        return logits, None if y is None else F.cross_entropy(logits.view(-1, 17), y.view(-1))


def batch():
    at = torch.randint(len(data) - 9, (12,))
    return torch.stack([data[i : i + 8] for i in at]), torch.stack([data[i + 1 : i + 9] for i in at])


model = Language()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
if ddp:
    model = nn.parallel.DistributedDataParallel(model)
for step in range(4):
    for micro in range(accumulate):
        with context:
            logits, loss = model(*batch())
            loss = loss / accumulate
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {{step}} loss {{loss.item() * accumulate:.9f}} norm {{norm.item():.9f}}")
"""
NUMBER = re.compile(r"\d+\.\d+")


@pytest.fixture(scope="module")
def plainly(plain: PlainPython, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What plain Python prints for TWO_BRANCHES."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "train.py").write_text(TWO_BRANCHES)
    return plain.printed(folder, "train.py")


@pytest.mark.parametrize("workers", [2, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (1, 3))])
def test_a_script_with_two_branches_takes_the_one_for_one_process(play: Play, plainly: str, workers: int) -> None:
    printed = play(TWO_BRANCHES, workers=workers).well.printed
    assert "variables []" in plainly
    assert NUMBER.sub("", printed) == NUMBER.sub("", plainly)
    ours, theirs = (torch.tensor([float(number) for number in NUMBER.findall(text)]) for text in (printed, plainly))
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=0.0)  # the script computes in bfloat16


def test_variables_of_the_shell_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict.fromkeys(LAUNCHER_VARIABLES, "7") | {"HOME": "/nowhere"})
    settings = WorkerSettings(run=RunSettings(script=""), record="", threads=torch.get_num_threads())
    process._take_share(settings, {"OMP_NUM_THREADS": "1"})
    assert os.environ == {"HOME": "/nowhere", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(("real", "shown"), [(8, 1), (1, 1), (0, 0)])
def test_a_script_counts_one_gpu(monkeypatch: pytest.MonkeyPatch, real: int, shown: int) -> None:
    from paceline.comm import group

    for owner in (torch.cuda, torch.accelerator):
        monkeypatch.setattr(owner, "device_count", lambda: real)
    monkeypatch.setattr(group, "count_gpus", torch.cuda.device_count)
    undo = own_gpu.show()
    assert (torch.cuda.device_count(), torch.accelerator.device_count()) == (shown, shown)
    assert group.count_gpus() == real, "NCCL needs to know of the others"
    undo()
    assert torch.cuda.device_count() == real


def test_a_worker_has_its_own_gpu_first_and_counts_no_other(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    script = """
        import os, torch
        print(os.environ["CUDA_VISIBLE_DEVICES"], hasattr(torch.cuda.device_count, "__wrapped__"))
        """
    played = play(script).well
    assert (played.printed, played.log(1)) == ("4,6 True\n", "6,4 True\n")


# -- as torchrun -------------------------------------------------------------------------------------------------------

DDP = """
import os
import torch
import torch.distributed as dist
from torch import nn

rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
assert dist.is_torchelastic_launched() and local == rank
dist.init_process_group("gloo")
torch.manual_seed(0)
x, y = torch.randn(12, 5), torch.randn(12, 1)
model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = (model(x[rank::world]) - y[rank::world]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(total := loss.detach() / world)
    if rank == 0:
        print(f"{total.item():.6f}")
open(f"rank{rank}.txt", "w").write(os.environ["MASTER_ADDR"])
dist.destroy_process_group()
"""


def by_hand() -> list[str]:
    """What one process prints for DDP's model and data."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 5), torch.randn(12, 1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(f"{loss.item():.6f}")
    return found


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_as_torchrun_a_script_distributes_itself(play: Play, workers: int) -> None:
    played = play(DDP, workers=workers, launch_as="torchrun").well
    assert [float(line) for line in played.printed.split()] == pytest.approx([float(n) for n in by_hand()], abs=2e-6)
    assert sorted(path.name for path in played.folder.iterdir()) == [f"rank{rank}.txt" for rank in range(workers)]
    assert not played.notices
    run = read_run(played.record)
    assert run.settings["launch_as"] == "torchrun"
    assert run.outcome is not None
    assert (run.outcome.steps, run.outcome.view, run.strategy) == (3, "", "script")


def test_as_torchrun_all_gpus_are_seen_in_one_order(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    script = 'import os, torch; print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LOCAL_RANK"])'
    played = play(script, launch_as="torchrun").well
    assert (played.printed, played.log(1)) == ("4,6 0\n", "4,6 1\n")
    assert [worker.gpus for worker in read_run(played.record).workers] == [["4", "6"], ["6", "4"]]


def test_as_torchrun_random_streams_differ_as_between_processes(play: Play) -> None:
    script = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    first = play(script, launch_as="torchrun", seed=5).well
    assert all(a != b for a, b in zip(first.printed.split(), first.log(1).split(), strict=True))


def test_as_torchrun_a_script_for_one_process_is_told_that_nothing_is_split(play: Play) -> None:
    [notice] = play("print('hello')", launch_as="torchrun").well.notices
    assert "each of the 2 workers ran all of it" in notice


def test_as_torchrun_the_python_api_distributes(play: Play) -> None:
    script = """
        import torch, paceline
        from paceline.script.seams.api import current
        torch.manual_seed(0)
        model = paceline.Mirrored().distribute(torch.nn.Linear(3, 1))
        loss = model(torch.arange(24.0).view(8, 3)).pow(2).mean()
        loss.backward()
        print(f"{loss.item():.5f} {model.weight.grad.sum().item():.4f} {current().group.crossed > 0}")
        """
    split = play(script, workers=2, launch_as="torchrun").well
    whole = play(script, workers=1).well
    assert split.printed == whole.printed.replace("False", "True")
    assert not split.notices


# -- without --as ------------------------------------------------------------------------------------------------------

LIBRARY = """
import torch.distributed as dist

def prepare():
    dist.init_process_group("gloo", init_method="file:///nowhere", rank=0, world_size=1)
"""
CALLS = {
    "by hand": "import torch.distributed as dist\ndist.init_process_group('gloo')  # here",
    "imported by name": "from torch.distributed import init_process_group as begin\nbegin('gloo')  # here",
    "caught": "import torch.distributed as dist\ntry:\n    dist.init_process_group('gloo')  # here\n"
    "except BaseException:\n    print('went on')",
    "through a library": "import sys\nsys.path.append(__file__ + '-site-packages/site-packages')\nimport plugin\n"
    "def main():\n    plugin.prepare()  # here\nmain()",
    "through a mesh": "import torch.distributed as dist\ndist.init_device_mesh('cpu', (1,))  # here",
}


@pytest.mark.parametrize(("how", "workers"), [*((how, 2) for how in CALLS), ("by hand", 1)])
def test_a_process_group_without_as_is_refused_with_its_line(
    play: Play, tmp_path: Path, how: str, workers: int
) -> None:
    library = tmp_path / "train.py-site-packages" / "site-packages" / "plugin.py"
    library.parent.mkdir(parents=True)
    library.write_text(LIBRARY)
    played = play(CALLS[how], workers=workers, arguments=("--name", "my run"))
    line = next(number for number, text in enumerate(CALLS[how].splitlines(), 1) if text.endswith("# here"))
    script = tmp_path / "train.py"
    message = played.outcome.message
    assert played.outcome.exit_code == 1
    assert f"{script}:{line} calls torch.distributed.init_process_group" in message
    assert f"Type: paceline run -n {workers} --as torchrun {script} --name 'my run'\n" in message
    assert "Traceback" not in message
    assert message.count("init_process_group") == 1


def test_the_refusal_of_a_module_names_it_as_typed(play: Play) -> None:
    from paceline.script.seams.self_distributed import command

    run = RunSettings(script="package.train", module=True, workers=4, arguments=("--lr", "0.1"))
    assert command(run) == "paceline run -n 4 --as torchrun -m package.train --lr 0.1"


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise KeyError('no such column')", "KeyError"),
        ("torch.zeros(2) @ torch.zeros(3)", "RuntimeError"),
        ("sys.exit('no data')", "exited with code 1"),
    ],
)
@pytest.mark.crossed("rank")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_of_a_script_that_distributes_itself_is_its_own(
    play: Play, rank: int, fault: str, cause: str
) -> None:
    script = f"""
        import sys, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == {rank}:
            {fault}
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        """
    outcome = play(textwrap.dedent(script), launch_as="torchrun").outcome
    assert (outcome.exit_code, outcome.failed_rank) == (1, rank)
    assert cause in outcome.cause
    assert "came to the end" not in outcome.message


def test_a_collective_that_a_peer_no_longer_joins_is_shown_as_the_script_raised_it(play: Play) -> None:
    script = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        for step in range(3 - dist.get_rank()):
            dist.all_reduce(torch.ones(1))  # the line that waits
        """
    outcome = play(script, launch_as="torchrun").outcome
    assert (outcome.exit_code, outcome.failed_rank) == (1, 0)
    assert "dist.all_reduce(torch.ones(1))  # the line that waits" in outcome.message
    assert "Worker 1 had come to the end of the script before" in outcome.message


def test_a_backward_in_another_thread_is_refused_with_its_line(play: Play) -> None:
    played = play(
        """
        import threading, torch
        model = torch.nn.Linear(3, 1)
        model(torch.randn(6, 3)).mean().backward()
        thread = threading.Thread(target=lambda: model(torch.randn(6, 3)).mean().backward())
        thread.start()
        thread.join()
        model(torch.randn(6, 3)).mean().backward()
        """
    )
    assert played.outcome.exit_code == 1
    assert "train.py:5" in played.outcome.message
    assert "another thread" in played.outcome.message
