"""`--strategy server` on unmodified scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.launch import Event, Notice, Output, Zygote, launch
from paceline.record import Outcome
from paceline.record.servers import read_reports
from paceline.settings import RunSettings

SCRIPT = Path(__file__).with_name("trained_on_servers.py")
END_OF_EPOCH = "    model.eval()\n"
ON_RANK_1 = "from paceline.settings import of_this_process\nimport os, signal\nif of_this_process().rank == 1"


class Ran:
    def __init__(self, zygote: Zygote, folder: Path, script: Path, *arguments: object, **settings: Any) -> None:
        self.record = folder
        self.events: list[Event] = []
        run = RunSettings(script=str(script), arguments=tuple(map(str, arguments)), threads=1, **settings)
        self.outcome: Outcome = launch(
            run, zygote=zygote, record=folder, on_event=self.events.append, oversubscribe=True, limit=90
        )
        self.printed = b"".join(e.data for e in self.events if isinstance(e, Output) and e.stream == "stdout").decode()
        self.notices = [event.text for event in self.events if isinstance(event, Notice)]

    def losses(self) -> list[float]:
        return [float(line.split()[-1]) for line in self.printed.splitlines()]

    def samples(self) -> list[int]:
        """The samples that each worker trained on."""
        from paceline.record import read_steps

        return [sum(s.samples for s in read_steps(self.record, rank)) for rank in range(len(self.workers))]

    @property
    def workers(self) -> list[Path]:
        return sorted(self.record.glob("steps.rank*.jsonl"))


@pytest.mark.parametrize(
    ("strategy", "accumulate"),
    [pytest.param("server(staleness=0)", 1, marks=pytest.mark.slow), ("server(staleness=0,servers=2)", 2)],
)
def test_a_synchronous_server_prints_the_losses_of_mirrored_with_a_scaled_batch(
    zygote: Zygote, tmp_path: Path, strategy: str, accumulate: int
) -> None:
    ours = Ran(zygote, tmp_path / "server", SCRIPT, 2, accumulate, workers=3, strategy=strategy)
    theirs = Ran(zygote, tmp_path / "mirrored", SCRIPT, 2, accumulate, workers=3, batch="scale")
    assert ours.outcome.exit_code == theirs.outcome.exit_code == 0, ours.outcome.message
    assert ours.notices[0].startswith("Parameter server, synchronous: 3 workers")
    assert ours.losses() == pytest.approx(theirs.losses(), rel=1e-12)
    assert [line.split()[:2] for line in ours.printed.splitlines()] == [["0", "3"], ["1", "3"]]
    if accumulate == 1:
        assert sum(ours.samples()) == 2 * 70


def test_a_new_loader_in_each_epoch_has_a_new_order(zygote: Zygote, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.read_text().replace(
            END_OF_EPOCH, f"    loader = DataLoader(loader.dataset, 8, shuffle=True)\n{END_OF_EPOCH}"
        )
    )
    ours = Ran(zygote, tmp_path / "server", script, 3, 1, workers=2, strategy="server(staleness=0)")
    theirs = Ran(zygote, tmp_path / "mirrored", script, 3, 1, workers=2, batch="scale")
    assert ours.losses() == pytest.approx(theirs.losses(), rel=1e-12)


def test_an_asynchronous_run_says_so_first_and_records_the_staleness_of_its_updates(
    zygote: Zygote, tmp_path: Path
) -> None:
    ran = Ran(zygote, tmp_path / "r", SCRIPT, 3, 1, workers=2, strategy="server(staleness=1,servers=2)")
    assert ran.outcome.exit_code == 0, ran.outcome.message
    assert ran.notices[0].startswith("Parameter server, asynchronous: the same numbers")
    assert "each worker has a momentum of its own" in ran.notices[0]
    assert "Parameters of SGD on server 0: 256 B" in ran.notices[1]
    assert len(ran.losses()) == 3
    assert sum(ran.samples()) == 3 * 70
    reports = read_reports(ran.record)
    assert [report.updates for report in reports] == [3 * 9] * 2
    assert all(sum(report.staleness.values()) == 27 and max(report.staleness) <= 3 for report in reports)


def test_fast_workers_take_more_batches_where_batches_are_free(zygote: Zygote, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    slow = f"{ON_RANK_1}:\n    import time\n    optimizer.register_step_pre_hook(lambda *a: time.sleep(0.5))\n"
    script.write_text(SCRIPT.read_text().replace("epochs, accumulate =", slow + "epochs, accumulate ="))
    ran = Ran(zygote, tmp_path / "r", script, 1, 1, workers=2, strategy="server(staleness=2,deal=free)")
    assert ran.outcome.exit_code == 0, ran.outcome.message
    fast, slow_ones = ran.samples()
    assert fast > slow_ones > 0
    assert fast - slow_ones <= 4 * 8


def test_a_killed_worker_is_told_and_the_run_goes_on(zygote: Zygote, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    killing = """
    from paceline.settings import of_this_process
    import os
    if of_this_process().rank == 1 and epoch == 1:
        os.kill(os.getpid(), 9)
"""
    script.write_text(SCRIPT.read_text().replace(END_OF_EPOCH, killing + END_OF_EPOCH))
    ran = Ran(zygote, tmp_path / "r", script, 4, 1, workers=3, strategy="server(staleness=0)")
    assert ran.outcome.exit_code == 0, ran.outcome.message
    assert len(ran.losses()) == 4
    assert "Worker 1 was killed by SIGKILL (signal 9); the others go on without it." in ran.notices


def test_a_killed_server_is_told_and_the_run_goes_on(zygote: Zygote, tmp_path: Path) -> None:
    """The script's rank 0 finds the server among the children of its child, the supervisor."""
    script = tmp_path / "script.py"
    killing = """
    from paceline.settings import of_this_process
    import os, pathlib
    def children(pid):
        tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
        return [int(p) for task in tasks for p in (task / "children").read_text().split()]
    if of_this_process().rank == 0 and epoch == 1:
        [server] = [s for c in children(os.getpid()) for s in children(c)]
        os.kill(server, 9)
"""
    script.write_text(SCRIPT.read_text().replace(END_OF_EPOCH, killing + END_OF_EPOCH))
    ran = Ran(zygote, tmp_path / "r", script, 4, 1, workers=2, strategy="server(staleness=2)")
    assert ran.outcome.exit_code == 0, ran.outcome.message
    assert len(ran.losses()) == 4
    assert any("Server 0 was restarted" in notice for notice in ran.notices)
    (report,) = read_reports(ran.record)
    assert report.starts == 2


def test_an_optimizer_that_servers_do_not_know_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    own = "class Own(torch.optim.SGD): pass\ntorch.optim.SGD = Own\n"
    script.write_text(SCRIPT.read_text().replace("torch.manual_seed(0)\n", f"torch.manual_seed(0)\n{own}"))
    ran = Ran(zygote, tmp_path / "r", script, 1, 1, workers=2, strategy="server")
    assert ran.outcome.exit_code == 1
    assert "cannot run on a parameter server" in ran.outcome.message


@pytest.mark.slow
def test_what_a_script_saves_is_whole_and_plain_and_loads_under_other_strategies(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The optimizer's state comes from the servers and goes back to them, cut or not."""
    ours, theirs = tmp_path / "ours.pt", tmp_path / "theirs.pt"
    servers = {"workers": 2, "strategy": "server(staleness=0,servers=2)"}
    mirrored = {"workers": 2, "batch": "scale"}
    first = Ran(zygote, tmp_path / "a", SCRIPT, 2, 1, "--save", ours, **servers)
    assert first.outcome.exit_code == 0, first.outcome.message
    assert Ran(zygote, tmp_path / "b", SCRIPT, 2, 1, "--save", theirs, **mirrored).outcome.exit_code == 0
    saved, expected = (torch.load(path, weights_only=True) for path in (ours, theirs))
    for part in ("model", "optimizer", "schedule"):
        torch.testing.assert_close(saved[part], expected[part], rtol=1e-12, atol=1e-14)
    assert ours.stat().st_size < 1.2 * theirs.stat().st_size
    for number, (file, settings) in enumerate(((theirs, servers), (ours, mirrored), (ours, servers))):
        again = Ran(zygote, tmp_path / f"c{number}", SCRIPT, 1, 1, "--load", file, **settings)
        assert again.outcome.exit_code == 0, again.outcome.message
        assert again.losses() == pytest.approx(first.losses()[1:], rel=1e-12)


@pytest.mark.slow
def test_weights_that_the_script_sets_itself_are_not_overwritten_by_a_pull(zygote: Zygote, tmp_path: Path) -> None:
    plain = Ran(zygote, tmp_path / "a", SCRIPT, 1, 1, "--restore", workers=1)
    ran = Ran(zygote, tmp_path / "b", SCRIPT, 1, 1, "--restore", workers=2, strategy="server(staleness=1)")
    assert ran.outcome.exit_code == 0, ran.outcome.message
    assert ran.losses()[-1] == pytest.approx(plain.losses()[-1], rel=1e-12)
