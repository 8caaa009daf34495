"""The search of `fit` on a simulated machine: what is tried, in which order, and what wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from paceline.record.account import Account, Part, account_path
from paceline.reports.fit import accounted, complaint, headline, report
from paceline.reports.terminal import show
from paceline.trials.core.result import Measured, Status
from paceline.trials.fit.search import EXACTNESS, Fit, Verdict, rounds

GIB = 1 << 30
NORMAL = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]


class Machine:
    """Peaks of a script with `fixed` GiB of weights and states, and `kept` GiB of activations."""

    def __init__(
        self, folder: Path, *, has: float, fixed: float = 2, kept: float = 20, norms: bool = False, wrong: str = ""
    ) -> None:
        self.folder, self.has, self.fixed, self.kept, self.norms, self.wrong = folder, has, fixed, kept, norms, wrong
        self.refused: set[str] = set()
        self.tried: list[str] = []

    def peak(self, mods: tuple[str, ...], workers: int, strategy: str) -> tuple[float, float]:
        """Of memory; and the speed."""
        kept, speed, fixed = self.kept, 10.0, self.fixed
        for mod in mods:
            name, _, value = mod.partition("=")
            if name == "checkpointing":
                kept, speed = kept / 5, speed / 1.3
            if name == "accumulate":
                kept, speed = kept / int(value), speed / 1.35
            if name == "precision":
                kept, speed = kept / 2, speed * 2
        if strategy == "sharded":
            fixed, kept, speed = fixed / workers, kept / workers, speed * workers * 0.9
        return fixed + kept, speed

    def measure(self, name: str, *, mods: tuple[str, ...] | None = None, **changes: Any) -> Measured:
        self.tried.append(name)
        mods, workers = mods or (), changes.get("workers", 1)
        peak, speed = self.peak(mods, workers, changes.get("strategy", "mirrored"))
        has = 1000 if changes.get("memory_limit") == 0 else self.has
        found = Measured(name=name, mods=list(mods), workers=workers, status=Status.OK, batch=64, steps=10)
        if changes.get("account"):
            found.record = str(self.folder)
            account = Account(
                device="cuda:0",
                steps=1,
                peak=int(min(peak, has) * GIB),
                step=2,
                phase="forward",
                total=int(self.has * GIB),
                norms=self.norms,
                parts=[
                    Part("activations", int(min(self.kept, has) * GIB), 40, "blocks.*", "train.py:8"),
                    Part("weights", int(self.fixed * GIB / 4), 12),
                    Part("gradients", int(self.fixed * GIB / 4), 12),
                    Part("optimizer state", int(self.fixed * GIB / 2), 24),
                ],
                failed="" if peak <= has else "train.py:30",
            )
            account_path(self.folder, 0).write_bytes(msgspec.json.encode(account))
        if self.refused & {mod.partition("=")[0] for mod in mods}:
            found.status, found.message = Status.UNSUPPORTED, "it cannot be computed in micro-batches"
            return found
        if peak > has:
            found.status, found.message, found.steps = Status.MEMORY, "out of memory: tried to allocate 1 GiB", 0
            return found
        found.memory, found.samples_per_s, found.low, found.high = int(peak * GIB), speed, speed, speed
        found.losses = [1.1 * x for x in NORMAL] if self.wrong and self.wrong in mods else list(NORMAL)
        return found


def fitted(machine: Machine, *, limit: int = 0, gpus: int = 1, allow: tuple[str, ...] = (), mods: Any = ()) -> Verdict:
    search = Fit(machine, limit, gpus, mods, allow)
    search.carry_out()
    return search.found


def change(verdict: Verdict) -> list[str]:
    assert verdict.chosen is not None
    return verdict.rows[verdict.chosen].change


def test_a_script_that_fits_is_left_as_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path, has=24)
    found = fitted(machine)
    assert found.fits
    assert headline(found) == "fits as it is"
    assert machine.tried == ["as it is, account", "as it is"]


def test_the_fastest_change_that_fits_wins(tmp_path: Path) -> None:
    found = fitted(Machine(tmp_path, has=14))
    assert change(found) == ["checkpointing"]
    assert {tuple(row.change) for row in found.rows if row.fits} == {("checkpointing",), ("accumulate=2",)}
    assert headline(found) == "fits with checkpointing"


@pytest.mark.parametrize(("has", "wanted"), [(8, ["checkpointing"]), (5, ["checkpointing", "accumulate=2"]), (2.3, 16)])
def test_less_memory_takes_stronger_changes(tmp_path: Path, has: float, wanted: Any) -> None:
    found = fitted(Machine(tmp_path, has=has))
    assert change(found) == (["checkpointing", f"accumulate={wanted}"] if isinstance(wanted, int) else wanted)


def test_under_a_limit_losses_are_those_of_the_run_without_it(tmp_path: Path) -> None:
    found = fitted(Machine(tmp_path, has=14), limit=14 * GIB)
    assert found.compared == "without the limit"
    assert found.rows[found.chosen or 0].away == 0.0
    assert "1.30 × the time of a step without the limit" in said(found)


def test_a_change_with_other_losses_is_not_chosen(tmp_path: Path) -> None:
    found = fitted(Machine(tmp_path, has=14, wrong="checkpointing"), limit=14 * GIB)
    assert change(found) == ["accumulate=2"]
    assert next(row for row in found.rows if row.change == ["checkpointing"]).message == "its losses are others"


def test_batch_norm_rules_micro_batches_out_unless_that_is_allowed(tmp_path: Path) -> None:
    strict = Machine(tmp_path, has=5, norms=True)
    assert fitted(strict).chosen is None
    assert not any("accumulate" in name for name in strict.tried)
    found = fitted(Machine(tmp_path, has=5, norms=True), allow=(EXACTNESS,))
    assert any("accumulate" in mod or "precision" in mod for mod in change(found))
    assert "It changes the script's numbers" in said(found)


def test_what_is_refused_once_is_not_tried_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, has=5)
    machine.refused = {"accumulate"}
    assert fitted(machine).chosen is None
    assert sum("accumulate" in name for name in machine.tried) == 1


def test_more_gpus_come_first(tmp_path: Path) -> None:
    found = fitted(Machine(tmp_path, has=14), gpus=2)
    chosen = found.rows[found.chosen or 0]
    assert (chosen.strategy, chosen.workers, chosen.change) == ("sharded", 2, [])


def test_the_users_own_mods_stay(tmp_path: Path) -> None:
    found = fitted(Machine(tmp_path, has=5), mods=("channels_last", "accumulate=2"))
    assert "channels_last" in change(found)
    assert sum(mod.startswith("accumulate") for mod in change(found)) <= 1


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    found = fitted(Machine(tmp_path, has=1.9))
    assert found.chosen is None
    assert "Weights, gradients and the optimizer's state alone take 2 GiB" in said(found)
    assert "nothing" in complaint(found)


def test_the_account_is_told_in_three_lines(tmp_path: Path) -> None:
    account = fitted(Machine(tmp_path, has=14)).account
    assert account is not None
    lines = accounted(account)
    assert len(lines) == 3
    assert lines[0].startswith("at the peak (step 2, forward) 14 GiB of 14 GiB: weights 512 MiB")
    assert lines[1] == "the largest part: blocks.*, train.py:8, 14 GiB in 40 tensors"
    assert lines[2] == "memory ran out at train.py:30"


def test_rounds_end() -> None:
    for batch in (1, 2, 7, 10**9):
        for norms in (True, False):
            kinds = list(rounds(cuda=True, gpus=2, batch=batch, exact_parts=norms, allow=(EXACTNESS,)))
            assert len(kinds) < 14


def said(verdict: Verdict) -> str:
    console = Console(record=True, width=200, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    show(console, report(verdict))
    return console.export_text()
