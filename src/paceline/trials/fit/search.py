"""The search of `fit` for changes with which a script fits into memory, on any bench.

1. The script as it is, for a few steps, with its memory account. If it fits, nothing is to be done.
2. Under a limit that was asked for, the script without it: the losses and the speed that others are compared with.
3. Rounds of changes, each of which saves more than the last and takes more time. Those that keep the script's numbers
   come first; the others only where they are allowed. The first round in which something fits is the last one.
4. Among what fits, the fastest wins. Its losses are compared with those of the run without the limit, or else with
   those of another change that fits: what keeps the script's numbers must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from paceline.record.account import Account, read_account
from paceline.trials.core.result import Measured, Status
from paceline.trials.core.same_numbers import TOLERANCE, difference

AS_IT_IS, FREE = "as it is", "without the limit"
FEW = 8  # steps of the account: enough to see what grows from step to step
FIRST = 10  # losses that are compared: later, rounding may have grown large
MOST = 1024  # micro-batches
BLOCKS, PARTS, FUSED, HALF = "checkpointing", "accumulate", "fused_optimizer", "precision=bf16"
EXACTNESS = "exactness"


class Measures(Protocol):
    """What is needed of a `Bench`."""

    def measure(self, name: str, *, mods: tuple[str, ...] | None = None, **changes: Any) -> Measured: ...


class Row(msgspec.Struct, kw_only=True):
    """One trial. `memory`: peak bytes of the worker with the highest peak."""

    change: list[str]  # mods; empty: none
    workers: int = 1
    strategy: str = ""  # empty: the one that was asked for
    limited: bool = True  # False: the run without the limit
    exact: bool = True  # the change keeps the script's numbers, to rounding
    fits: bool = False
    status: Status = Status.OK
    memory: int = 0
    samples_per_s: float = 0.0
    low: float = 0.0
    high: float = 0.0
    steps: int = 0
    away: float | None = None  # the largest relative difference of the first losses from those they are compared with
    message: str = ""


class Verdict(msgspec.Struct, kw_only=True):
    """`chosen`: the number of a row. `why`: in words, where there is none."""

    limit: int = 0  # bytes that were asked for; 0: all of the device
    account: Account | None = None  # of the script as it is
    fits: bool = False  # as it is
    rows: list[Row] = []
    chosen: int | None = None
    compared: str = ""  # with what the losses of the chosen change were compared
    problem: str = ""
    failed: str = ""  # the record of the trial of the script, if that failed
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    mods: tuple[str, ...]
    workers: int = 0  # 0: as asked
    strategy: str = ""
    exact: bool = True

    @property
    def name(self) -> str:
        return " + ".join(([f"{self.strategy} on {self.workers} workers"] if self.strategy else []) + [*self.mods])

    @property
    def changes(self) -> dict[str, Any]:
        return {"workers": self.workers, "strategy": self.strategy} if self.strategy else {}


def rounds(*, cuda: bool, gpus: int, batch: int, exact_parts: bool, allow: Sequence[str]) -> Iterator[list[Change]]:
    """The changes to try, round by round. `exact_parts`: micro-batches give the numbers of the batch, which batch norm
    does not."""
    spread = [Change((), gpus, "zero1"), Change((), gpus, "sharded")] if gpus > 1 else []
    free = [Change((FUSED,))] if cuda else []
    has_parts = exact_parts or EXACTNESS in allow
    yield [*spread, *free, *([Change((HALF,), exact=False)] if EXACTNESS in allow else [])]
    parts = 2
    while parts <= min(max(batch, 2), MOST):
        alone, both = (f"{PARTS}={parts}",), (BLOCKS, f"{PARTS}={parts // 2}")
        found = [Change(alone, exact=exact_parts)] if has_parts else []
        if parts == 2:
            found.append(Change((BLOCKS,)))
        elif has_parts:
            found.append(Change(both, exact=exact_parts))
        elif parts > 4:
            return
        if EXACTNESS in allow:
            found += [Change((HALF, *one.mods), exact=False) for one in found]
        yield found + [Change(one.mods, gpus, "sharded", one.exact) for one in found if gpus > 1]
        parts *= 2


@dataclass(slots=True)
class Fit:
    """One search. `verdict` gives the results so far, also after an interrupt."""

    bench: Measures
    limit: int
    gpus: int  # over which a strategy may spread the model
    mods: Sequence[str] = ()  # that the user asked for
    allow: Sequence[str] = ()
    found: Verdict = field(default_factory=Verdict)
    _out: set[str] = field(default_factory=set)  # mods that cannot act, or that were refused
    _losses: dict[int, list[float | None]] = field(default_factory=dict)  # by row

    def carry_out(self) -> None:
        found, found.limit = self.found, self.limit
        first = self.bench.measure(f"{AS_IT_IS}, account", account=True, steps=FEW, enough=0.0)
        found.account = read_account(Path(first.record), 0) if first.record else None
        if (
            first.status.broken
            or first.status is Status.UNSUPPORTED
            or not (first.steps or first.status is Status.MEMORY)
        ):
            found.problem, found.failed = first.message, first.record
            return
        whole = self._add(Change(()), first) if first.status is Status.MEMORY else self._try(Change(()))
        if whole.fits:
            found.fits, found.chosen = True, 0
            return
        if whole.status is not Status.MEMORY:
            found.problem = whole.message
            return
        account = found.account
        if self.limit:
            self._try(Change(()), limited=False)
        exact_parts = account is None or not account.norms
        batch = first.batch or MOST
        for changes in rounds(cuda=self.on_gpu, gpus=self.gpus, batch=batch, exact_parts=exact_parts, allow=self.allow):
            for change in changes:
                if not {mod.partition("=")[0] for mod in change.mods} & self._out:
                    self._try(change)
            if self._choose():
                return

    def _with(self, change: Change) -> tuple[str, ...]:
        """The user's mods and the change, which replaces another value of a mod."""
        changed = {mod.partition("=")[0] for mod in change.mods}
        return (*(mod for mod in self.mods if mod.partition("=")[0] not in changed), *change.mods)

    @property
    def on_gpu(self) -> bool:
        return self.found.account is not None and self.found.account.device.startswith("cuda")

    def _try(self, change: Change, *, limited: bool = True) -> Row:
        name = (change.name or AS_IT_IS) if limited else FREE
        changes = change.changes if limited else {"memory_limit": 0}
        return self._add(change, self.bench.measure(name, mods=self._with(change), **changes), limited=limited)

    def _add(self, change: Change, measured: Measured, *, limited: bool = True) -> Row:
        row = Row(
            change=list(self._with(change)),
            workers=measured.workers,
            strategy=change.strategy,
            limited=limited,
            exact=change.exact,
            # A short script fits, even if it is too short to be timed.
            fits=measured.ok or (measured.status is Status.TOO_SHORT and measured.steps > 0),
            status=measured.status,
            memory=measured.memory if self.on_gpu else 0,  # of a process, it is not what the limit counts
            samples_per_s=measured.samples_per_s,
            low=measured.low,
            high=measured.high,
            steps=measured.steps,
            message=measured.message,
        )
        idle = {mod.partition("=")[0] for mod in measured.idle}
        if idle:
            row.fits, row.status = False, Status.UNSUPPORTED
            row.message = "; ".join(f"{mod}: {why}" for mod, why in measured.idle.items())
        if idle or measured.status is Status.UNSUPPORTED:
            self._out |= idle or {mod.partition("=")[0] for mod in change.mods[-1:]}
        self._losses[len(self.found.rows)] = measured.losses
        self.found.rows.append(row)
        return row

    def _choose(self) -> bool:
        """Whether something fits whose losses are right: the fastest such change."""
        rows = self.found.rows
        fitting = [n for n, row in enumerate(rows) if row.fits and row.limited]
        free = next((n for n, row in enumerate(rows) if not row.limited and row.fits), None)
        fitting.sort(key=lambda n: (not rows[n].exact, -rows[n].samples_per_s))
        for number in fitting:
            exact = [n for n in fitting if n != number and rows[n].exact]
            beside = free if free is not None else next(iter(exact), None)
            if beside is not None:
                rows[number].away = away(self._losses[number], self._losses[beside])
            if rows[number].exact and (rows[number].away or 0.0) > TOLERANCE * FIRST:
                rows[number].fits, rows[number].message = False, "its losses are others"
                continue
            self.found.chosen = number
            other = "" if beside is None else " ".join(rows[beside].change)
            self.found.compared = FREE if beside == free and free is not None else other
            return True
        return False


def away(losses: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """The largest relative difference of the first losses; None if there are none."""
    pairs = list(zip(losses, others, strict=False))[:FIRST]
    known = [difference(a, b) for a, b in pairs if a is not None and b is not None]
    return max(known, default=None)
