"""The candidates of `tune`: which mods to try, with which values, in which order.

Mods that often gain most, or that other mods need first, come first. A mod that is not listed here is never tried by
`tune`; `paceline run --mod` accepts it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError
from paceline.mods import catalog
from paceline.trials.tune.loss_guard import Promise

MORE = "batch"  # the mod that changes the mathematics: tried only with --allow
EXACTNESS = "exactness"  # allows the mods of several workers that give up the same numbers
INEXACT = ("bn=local", "random=own", "view=slice")
INEXACT_ACROSS = ("compression=powersgd",)  # between hosts
ALLOWED = (MORE, EXACTNESS)
WORKERS = "workers"
OF_THE_RUN: dict[str, type] = {WORKERS: int, "compression": str, "strategy": str}  # settings that are tried like mods
LATER = 1000  # added to the order of candidates with little to gain: more than there are candidates
LONG_START = 10.0  # seconds: a mod whose first steps take longer makes every trial with it long


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mod to try, as typed after --mod."""

    mod: str
    order: int  # position in the list: lower is tried earlier
    seconds: float = 0.0  # extra time of its first steps, compared with the unmodified script
    doubles: bool = False  # `batch=x2`: if it gains, the doubled value is tried too
    likely: bool = False  # gains nearly always: tried together with the other likely ones first

    @property
    def name(self) -> str:
        return name_of(self.mod)

    @property
    def needs_workers(self) -> bool:
        """Whether it does nothing with one worker."""
        return self.mod in (*INEXACT, *INEXACT_ACROSS)

    def doubled(self) -> Candidate:
        """`batch=x2` → `batch=x4`."""
        times, colon, rule = self.mod.removeprefix(f"{self.name}=x").partition(":")
        return dataclasses.replace(self, mod=f"{self.name}=x{2 * int(times)}{colon}{rule}")

    def gentler(self) -> Candidate | None:
        """The same batch with a learning rate that grows less; None if it already does, or if this is no batch."""
        return None if ":" in self.mod or not self.doubles else dataclasses.replace(self, mod=f"{self.mod}:sqrt")


# (mod, extra seconds of its first steps)
_ON_CUDA = (
    ("cuda_graphs", 5.0),
    ("resident", 0.0),
    ("precision=bf16", 0.0),
    ("channels_last", 0.0),
    ("compile=default", 40.0),
    ("fused_optimizer", 0.0),
    ("tf32", 0.0),
    ("loader=fast", 0.0),
    ("loader=4", 1.0),
    ("loader={cores}", 1.0),
    ("cudnn_benchmark", 0.0),
    ("compile=reduce-overhead", 40.0),
)
_ON_CPU = (
    ("resident", 0.0),
    ("loader=fast", 0.0),
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
    ("loader={cores}", 1.0),
    ("loader={fourfold}", 1.0),  # loading that waits, for a disk or a network, needs more processes than cores
)
# On several hosts, before all others: what goes between the hosts, and less of it. The size of the buckets and the
# all-reduce algorithm are tried in the first steps of every run (`comm.bucket_tuning`).
_ACROSS_HOSTS = (
    ("compression=bf16", 0.0),
    ("strategy=zero1", 0.0),
    ("strategy=sharded", 0.0),
    ("workers={on_one}", 0.0),
)
_LIKELY = {
    "cuda": ("cuda_graphs", "resident", "precision=bf16", "channels_last"),
    "cpu": ("resident", "channels_last"),
}
# With these mods, a model that draws random numbers (dropout) draws different ones.
_DRAW = ("compile", "cuda_graphs", WORKERS)
_STRICTEST_FIRST: tuple[Promise, ...] = ("same", "rounded", "other", "mathematics")


def name_of(mod: str) -> str:
    return mod.partition("=")[0]


def tried_names() -> list[str]:
    """The names of all mods that `tune` tries on some machine."""
    tried = (*_ON_CUDA, *_ON_CPU, *_ACROSS_HOSTS)
    return sorted({name_of(mod) for mod, _ in tried} | {MORE, *map(name_of, INEXACT)})


def summary_of(name: str) -> str:
    """What a mod, or a setting of the run, is for."""
    of_the_run = {"compression": "compress gradients sent between hosts", "strategy": "how the workers share the work"}
    return of_the_run.get(name) or catalog.CATALOG[name].summary


def check_asked(*, start: Sequence[str], allow: Sequence[str], only: Sequence[str], without: Sequence[str]) -> None:
    """UsageError if options of `tune` contradict each other, so that nothing would be tried."""
    both = next((one for one in only if one in without or name_of(one) in without), "")
    if both:
        raise UsageError(
            f"--only {both} and --without {name_of(both) if both not in without else both} contradict each other: "
            "nothing is left to try.",
            advice="Leave one of the two options out.",
        )
    if MORE in allow and MORE in without:
        raise UsageError(
            f"--allow {MORE} and --without {MORE} contradict each other.", advice="Leave one of the two options out."
        )
    if only and all(one in start or (name_of(one) == one and one in map(name_of, start)) for one in only):
        raise UsageError(
            f"--only {only[0]} and --mod {only[0]}: the mod is already there at the start, so nothing is left to try.",
            advice=f"Leave out --mod {only[0]}: tune measures the script with the mod and without it.",
        )
    if MORE in map(name_of, only) and MORE not in allow:
        raise UsageError(
            f"--only {MORE}: a larger batch changes the mathematics, and is tried only if it is allowed.",
            advice=f"Type: --allow {MORE} --only {MORE}",
        )


def candidates(
    *,
    gpus: int,
    cores: int,
    workers: int,
    threads: int,
    allow: Sequence[str] = (),
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    hosts: Sequence[int] = (),
) -> list[Candidate]:
    """The candidates for a machine with these GPUs and cores, and a run on `workers` with `threads` each. `only` and
    `without` are names of mods, or mods with a value. `hosts`: the workers of each of several hosts."""
    listed = [*(_ON_CUDA if gpus else _ON_CPU)]
    if len(hosts) > 1:
        listed = [*_ACROSS_HOSTS, *(each for each in listed if name_of(each[0]) != WORKERS)]
    elif gpus > 1 and workers != gpus:
        listed.insert(0, (f"{WORKERS}={gpus}", 0.0))
    if MORE in allow:  # before mods with a long start: a larger batch gains most on an idle GPU
        quick = next((place for place, (_, seconds) in enumerate(listed) if seconds > LONG_START), len(listed))
        listed.insert(quick, (f"{MORE}=x2", 0.0))
    if EXACTNESS in allow and (workers > 1 or any(name_of(mod) == WORKERS for mod, _ in listed)):
        across = INEXACT_ACROSS if len(hosts) > 1 else ()
        listed += [(mod, 0.0) for mod in (*INEXACT, *across)]
    likely = _LIKELY["cuda" if gpus else "cpu"]
    numbers = {
        "on_one": str(hosts[0] if hosts else 1),
        "cores": str(cores),
        "half": str(max(1, cores // 2)),
        "fourfold": str(min(4 * cores, 32)),
    }
    found: dict[str, Candidate] = {}
    for order, (text, seconds) in enumerate(listed):
        mod = text.format(**numbers)
        as_it_is = mod in (f"threads={threads}", f"{WORKERS}={workers}")
        as_it_is = as_it_is or (mod == f"{WORKERS}=1" and len(hosts) < 2)
        as_it_is = as_it_is or (mod == "loader=fast" and workers > 1)  # it is for one worker
        known = name_of(mod) in catalog.CATALOG or name_of(mod) in OF_THE_RUN
        if known and not as_it_is and mod not in found:
            doubles = name_of(mod) == MORE
            found[mod] = Candidate(mod=mod, order=order, seconds=seconds, doubles=doubles, likely=mod in likely)
    for asked in (*only, *without):
        if asked not in found and asked not in map(name_of, found):
            known_ones = ", ".join(dict.fromkeys(map(name_of, found)))
            option = "--only" if asked in only else "--without"
            raise UsageError(
                f"{option} {asked}: tune does not try this mod on this machine.", advice=f"Choose from: {known_ones}"
            )
    picked = [c for c in found.values() if not only or c.mod in only or c.name in only]
    return [c for c in picked if c.mod not in without and c.name not in without]


def together(mods: Sequence[str], candidate: str) -> tuple[str, ...]:
    """The mods plus the candidate, without the mods that the candidate excludes and without another value of it."""
    name = name_of(candidate)
    return (*(mod for mod in mods if name_of(mod) != name and not _exclude(mod, candidate)), candidate)


def _exclude(one: str, other: str) -> bool:
    names = {name_of(one), name_of(other)}
    if names & OF_THE_RUN.keys():
        return names == {"compression", "strategy"}  # only mirrored sends gradients that can be compressed
    try:
        catalog.parse([one, other])
    except UsageError:
        return True
    return False


def settings_of(mods: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Splits mods into those that the workers apply, and settings of the run itself (`workers=2`)."""
    split = {name_of(mod): mod.partition("=")[2] for mod in mods if name_of(mod) in OF_THE_RUN}
    rest = tuple(mod for mod in mods if name_of(mod) not in OF_THE_RUN)
    return rest, {name: OF_THE_RUN[name](value) for name, value in split.items()}


def promise_of(mods: Iterable[str]) -> Promise:
    """The promise of a set of mods about the script's numbers: the weakest promise among them."""
    return max((_promise(name_of(mod)) for mod in mods), key=_STRICTEST_FIRST.index, default="same")


def _promise(name: str) -> Promise:
    if name == MORE or name in map(name_of, INEXACT):
        return "mathematics"
    if name in OF_THE_RUN:
        return "other" if name == "compression" else "rounded"
    return catalog.CATALOG[name].numbers


def draws(mods: Iterable[str]) -> bool:
    """Whether these mods may change the random numbers that the model draws."""
    return any(name_of(mod) in _DRAW for mod in mods)
