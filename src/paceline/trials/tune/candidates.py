"""What `tune` tries: which mods, with which values, in which order.

The order is that of promise: what often gains most, and what other mods only gain after, comes first. A mod that is not
listed here is not tried by itself; `paceline run --mod` takes it all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.errors import UsageError
from paceline.mods import catalog
from paceline.trials.tune.loss_guard import Promise

MORE = "batch"  # the mod that changes the mathematics: tried only where it is allowed
WORKERS = "workers"
LONG_START = 10.0  # seconds that a mod's first steps take: above it, every trial with it is long


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mod to try, as people type it."""

    mod: str
    order: int  # of promise
    seconds: float = 0.0  # that its first steps take, beyond those of the script as it is
    doubles: bool = False  # `batch=x2`: where it gains, twice as much is tried

    @property
    def name(self) -> str:
        return name_of(self.mod)

    def doubled(self) -> Candidate:
        """`batch=x2` → `batch=x4`."""
        times, colon, rule = self.mod.removeprefix(f"{self.name}=x").partition(":")
        return dataclasses.replace(self, mod=f"{self.name}=x{2 * int(times)}{colon}{rule}")

    def gentler(self) -> Candidate | None:
        """The same batch with a learning rate that grows less; None where it does already, or is no batch."""
        return None if ":" in self.mod or not self.doubles else dataclasses.replace(self, mod=f"{self.mod}:sqrt")


# (mod, seconds of its start)
_ON_CUDA = (
    ("cuda_graphs", 5.0),
    ("resident", 0.0),
    ("precision=bf16", 0.0),
    ("channels_last", 0.0),
    ("compile=default", 40.0),
    ("fused_optimizer", 0.0),
    ("tf32", 0.0),
    ("loader=4", 1.0),
    ("cudnn_benchmark", 0.0),
    ("compile=reduce-overhead", 40.0),
)
_ON_CPU = (
    ("resident", 0.0),
    ("channels_last", 0.0),
    ("workers={cores}", 0.0),
    ("compile=default", 30.0),
    ("threads={cores}", 0.0),
    ("threads={cores}:bound", 0.0),
    ("threads={half}", 0.0),
    ("threads=1", 0.0),
    ("precision=bf16", 0.0),
    ("fused_optimizer", 0.0),
    ("loader={half}", 1.0),
)
# Inside the model they draw other random numbers than without, where it draws any (dropout).
_DRAW = ("compile", "cuda_graphs", WORKERS)
_STRICTEST_FIRST: tuple[Promise, ...] = ("same", "rounded", "other", "mathematics")


def name_of(mod: str) -> str:
    return mod.partition("=")[0]


def candidates(
    *,
    gpus: int,
    cores: int,
    workers: int,
    threads: int,
    allow: Sequence[str] = (),
    only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Candidate]:
    """What applies on a machine with so many GPUs and cores, to a run of so many workers with so many threads each.
    `only` and `without` are names of mods, or mods with a value."""
    listed = [*(_ON_CUDA if gpus else _ON_CPU)]
    if gpus > 1 and workers != gpus:
        listed.insert(0, (f"{WORKERS}={gpus}", 0.0))
    if MORE in allow:  # before what takes long to start: nothing gains more where a GPU is idle
        quick = next((place for place, (_, seconds) in enumerate(listed) if seconds > LONG_START), len(listed))
        listed.insert(quick, (f"{MORE}=x2", 0.0))
    numbers = {"cores": str(cores), "half": str(max(1, cores // 2))}
    found: dict[str, Candidate] = {}
    for order, (text, seconds) in enumerate(listed):
        mod = text.format(**numbers)
        as_it_is = mod in (f"threads={threads}", f"{WORKERS}={workers}", f"{WORKERS}=1")
        known = name_of(mod) in catalog.CATALOG or name_of(mod) == WORKERS
        if known and not as_it_is and mod not in found:
            doubles = name_of(mod) == MORE
            found[mod] = Candidate(mod=mod, order=order, seconds=seconds, doubles=doubles)
    for asked in (*only, *without):
        if asked not in found and asked not in map(name_of, found):
            known_ones = ", ".join(dict.fromkeys(map(name_of, found)))
            raise UsageError(
                f"Asked for {asked} to be tried or left out, but it is not among what is tried here.",
                advice=f"These are: {known_ones}",
            )
    picked = [c for c in found.values() if not only or c.mod in only or c.name in only]
    return [c for c in picked if c.mod not in without and c.name not in without]


def together(mods: Sequence[str], candidate: str) -> tuple[str, ...]:
    """The mods with one more. What it excludes, and another value of it, goes."""
    name = name_of(candidate)
    return (*(mod for mod in mods if name_of(mod) != name and not _exclude(mod, candidate)), candidate)


def _exclude(one: str, other: str) -> bool:
    if WORKERS in (name_of(one), name_of(other)):
        return False
    try:
        catalog.parse([one, other])
    except UsageError:
        return True
    return False


def settings_of(mods: Sequence[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """What a run is told: mods that its workers apply, and settings of the run itself (`workers=2`)."""
    workers = [int(mod.partition("=")[2]) for mod in mods if name_of(mod) == WORKERS]
    rest = tuple(mod for mod in mods if name_of(mod) != WORKERS)
    return rest, {WORKERS: workers[0]} if workers else {}


def promise_of(mods: Iterable[str]) -> Promise:
    """What mods together promise of the numbers: as much as the one that promises least."""
    return max((_promise(name_of(mod)) for mod in mods), key=_STRICTEST_FIRST.index, default="same")


def _promise(name: str) -> Promise:
    if name == MORE:
        return "mathematics"
    return "rounded" if name == WORKERS else catalog.CATALOG[name].numbers


def draws(mods: Iterable[str]) -> bool:
    """Whether they may draw other random numbers inside the model."""
    return any(name_of(mod) in _DRAW for mod in mods)
