"""The trials of `paceline bandwidth`: plans them, runs them, reads their measurements. `verdict` judges them.

There are at most two short runs on one zygote. First one worker, which sees all GPUs, measures the GPUs; then all
workers measure pairs and collectives. Each run has its own record, with one line per measurement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from paceline.comm.measuring.plan import OPS, REPORTS, MeasuringPlan, Report, expected
from paceline.errors import UsageError
from paceline.launch import Event, Zygote, launch
from paceline.launch.local import OtherHosts
from paceline.settings import RunSettings
from paceline.topology import Host
from paceline.units import parse_size, size

PROGRAM = "paceline.comm.measuring"
SETTINGS = RunSettings(script=PROGRAM, module=True, staged=False)
PARTS = ("devices", "pairs", "collectives")
SIZES = tuple(1024 * 4**step for step in range(10))  # 1 KiB … 256 MiB
QUICK_SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
LARGEST = 1 << 34
_FACTOR = 4
_COPIES_OF_A_SIZE = 8  # most buffers of one message size that a worker holds at once
_MOST_PER_CORE = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One short run of the plan."""

    name: str
    workers: int
    plan: MeasuringPlan
    expected: int  # number of measurements
    spread: int = 0  # as in `RunSettings`


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The measurements of a trial. A failed or interrupted trial has those made before its end."""

    trial: Trial
    reports: list[Report]
    failure: str = ""
    interrupted: bool = False
    exit_code: int = 0


def plan(
    host: Host,
    *,
    workers: int,
    ops: Sequence[str] = OPS,
    sizes: Sequence[int] = (),
    backends: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    quick: bool = False,
    hosts: Sequence[int] = (),
) -> list[Trial]:
    """The trials, in order. `hosts`: the workers of each, if there are several; their GPUs are not measured."""
    chosen = tuple(sizes) or (QUICK_SIZES if quick else SIZES)
    rounds, seconds = (3, 0.2) if quick else (7, 0.6)
    trials = []
    if host.gpus and "devices" in parts and len(hosts) < 2:
        # Large also in quick trials: a message that fits into a GPU's cache does not measure its memory.
        asked = MeasuringPlan(device_bytes=256 << 20, rounds=5 if quick else 11)
        trials.append(
            Trial(name="devices", workers=1, plan=asked, expected=expected(asked, 1, len(host.gpus))),
        )
    if {"pairs", "collectives"} & set(parts):
        collectives = "collectives" in parts
        asked = MeasuringPlan(
            pair_bytes=(4 << 20 if quick else 16 << 20) if "pairs" in parts else 0,
            ops=tuple(ops) if collectives else (),
            sizes=chosen if collectives else (),
            backends=(tuple(backends) or usual_backends(host, workers, hosts)) if collectives else (),
            rounds=rounds,
            seconds=seconds,
        )
        trials.append(Trial(name="workers", workers=workers, plan=asked, expected=expected(asked, workers, 0, hosts)))
    return trials


def of_hosts(count: int) -> Trial:
    """One worker on each host: what the hosts are made of, and the links between them."""
    asked = MeasuringPlan(pair_bytes=4 << 20, topologies=True, rounds=5, seconds=0.3)
    number = expected(asked, count, 0, [1] * count)
    return Trial(name="hosts", workers=count, plan=asked, expected=number, spread=count)


def carry_out(
    trials: Sequence[Trial],
    *,
    zygote: Zygote | OtherHosts,
    record: Path,
    share: bool = False,
    on_event: Callable[[Event], None],
    on_result: Callable[[Result], None],
) -> list[Result]:
    """Runs the trials, each with its own record below `record`. After a failed trial the next one still runs; an
    interrupt ends the series."""
    results = []
    for trial in trials:
        folder = record / "trials" / trial.name
        outcome = launch(
            replace(
                SETTINGS,
                arguments=(msgspec.json.encode(trial.plan).decode(),),
                workers=trial.workers,
                spread=trial.spread,
                share_record=share,
            ),
            zygote=zygote,
            record=folder,
            on_event=on_event,
            verb="bandwidth",
            oversubscribe=True,  # `check` has refused too many workers
        )
        result = Result(
            trial=trial,
            reports=read_reports(folder / REPORTS),
            failure=outcome.message if outcome.exit_code and not outcome.interrupted else "",
            interrupted=outcome.interrupted,
            exit_code=outcome.exit_code,
        )
        results.append(result)
        on_result(result)
        if outcome.interrupted:
            break
    return results


def read_reports(path: Path) -> list[Report]:
    """The measurements so far. Ignores a torn last line, which is still being written."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
    return [decoder.decode(line) for line in lines[:-1] if line]


def usual_backends(host: Host, workers: int, hosts: Sequence[int] = ()) -> tuple[str, ...]:
    """The backends that training on this machine could use, or on several hosts."""
    if len(hosts) > 1:
        return ("gloo", "network", "hosts")
    return ("memory", "gloo", "nccl") if 2 <= workers <= len(host.gpus) else ("memory", "gloo")


def default_workers(host: Host) -> int:
    """One worker per GPU, so that NCCL can be measured; at least two, because one worker has no peer."""
    return max(2, min(len(host.gpus), host.usable_cores))


# -- checking and parsing options --------------------------------------------------------------------------------------


def check(
    host: Host,
    *,
    workers: int,
    sizes: Sequence[int] = SIZES,
    backends: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    memory: int | None = None,
    oversubscribe: bool = False,
    hosts: Sequence[int] = (),
) -> None:
    """Raises UsageError if this machine, or several hosts with so many workers, cannot measure that. `memory`: free
    bytes."""
    wrong = {"memory"} & {*backends} if len(hosts) > 1 else {"hosts"} & {*backends}
    if wrong and "collectives" in parts:
        where = "within a host, and there are several" if len(hosts) > 1 else "between hosts, and there is only one"
        raise UsageError(
            f"--backends {wrong.pop()} is {where}.", advice="Leave the backend out, or type other --hosts."
        )
    if len(hosts) > 1:
        if tuple(parts) == ("devices",):
            raise UsageError(
                "--only devices measures the GPUs of one host.",
                advice="Type the command there, without --hosts.",
            )
        return
    if tuple(parts) == ("devices",):
        if not host.gpus:
            raise UsageError(f"--only devices: {host.name} has no GPU.", advice="Leave out --only devices.")
        return
    if workers < 2:
        raise UsageError(
            f"-n {workers}: bandwidth is measured between workers, which needs at least 2.", advice="Type: -n 2"
        )
    cores = host.usable_cores
    if workers > cores and not oversubscribe and workers > 2:
        raise UsageError(
            f"-n {workers}: {host.name} has {cores} core{'s' * (cores != 1)}, and workers that share a core wait for "
            "each other, which spoils the measurement.",
            advice=f"Type -n {max(2, cores)} or less, or measure anyway: --oversubscribe",
        )
    if workers > (most := _MOST_PER_CORE * cores) and workers > 2:
        raise UsageError(
            f"-n {workers}: {workers} workers on {cores} cores would take too long.", advice=f"Type -n {most} or less."
        )
    if "collectives" not in parts:
        return
    if "nccl" in backends and workers > len(host.gpus):
        raise UsageError(
            f"--backends nccl: NCCL needs one GPU per worker, and {host.name} has {len(host.gpus)} "
            f"GPU{'s' * (len(host.gpus) != 1)} for {workers} workers.",
            advice="Leave out nccl, or start fewer workers with -n.",
        )
    need = max(sizes, default=0) * workers * _COPIES_OF_A_SIZE
    if memory is not None and need > memory:
        raise UsageError(
            f"--sizes: {workers} workers with messages of {size(max(sizes))} need about {size(need)} of memory, but "
            f"only {size(memory)} are free.",
            advice="Measure smaller messages: --sizes 1K-16M",
        )


def parse_names(text: str, option: str, known: Sequence[str]) -> tuple[str, ...]:
    """`all_reduce,broadcast` as names, each once, in the order of `known`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {text}: there is no {name!r}.", advice=f"Choose from: {', '.join(known)}")
    return tuple(name for name in known if name in names)


def parse_sizes(text: str) -> tuple[int, ...]:
    """`1K,64K,4M` in bytes, each once, in order; `1K-256M` multiplies by 4 from the first to the last."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = _parse_size(first, text)
        high = _parse_size(last, text) if dash else low
        if high < low:
            raise UsageError(
                f"--sizes {text}: {last} is less than {first}.", advice="Type it like this: --sizes 1K-64M"
            )
        while low <= high:
            found.add(low)
            low *= _FACTOR
    return tuple(sorted(found))


def _parse_size(text: str, whole: str) -> int:
    found = parse_size(text) or 0
    if not 4 <= found <= LARGEST:
        raise UsageError(
            f"--sizes {whole}: {text.strip()!r} is not a size between 4 bytes and {LARGEST >> 30}G.",
            advice="Type it like this: --sizes 1K,64K,4M, or a range in steps of 4×: --sizes 1K-256M",
        )
    return found
