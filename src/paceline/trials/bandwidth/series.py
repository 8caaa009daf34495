"""What `paceline bandwidth` runs: which workers measure what, where, and how it is read back. The verdict is made in
`bandwidth_verdict`.

Two short runs at most, on one zygote: one worker alone for the GPUs, which it sees all of; then all workers for what
goes on between them. Each leaves a record of its own, with a line for each thing that was measured.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from paceline.comm.measuring.plan import OPS, MeasuringPlan, Report, expected
from paceline.errors import UsageError
from paceline.launch import Event, Zygote, launch
from paceline.record.private import create, make_folder, write_file
from paceline.settings import RunSettings
from paceline.topology import Host
from paceline.units import parse_size, size

PROGRAM = "paceline.comm.measuring"
PARTS = ("devices", "pairs", "collectives")
SIZES = tuple(1024 * 4**step for step in range(10))  # 1 KiB … 256 MiB
QUICK_SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
LARGEST = 1 << 34
_FACTOR = 4
_COPIES_OF_A_SIZE = 8  # that a worker holds at once, at most
_MOST_PER_CORE = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One short run of the plan."""

    name: str
    workers: int
    plan: MeasuringPlan
    expected: int  # reports


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a trial gave; of one that failed or was interrupted, what it had measured until then."""

    trial: Trial
    reports: list[Report]
    failure: str = ""
    interrupted: bool = False
    exit_code: int = 0


def plan(
    host: Host,
    record: Path,
    *,
    workers: int,
    ops: Sequence[str] = OPS,
    sizes: Sequence[int] = (),
    backends: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    quick: bool = False,
) -> list[Trial]:
    """The trials, in their order. Nothing is made yet; `record` is where they will report."""
    chosen = tuple(sizes) or (QUICK_SIZES if quick else SIZES)
    rounds, seconds = (3, 0.2) if quick else (7, 0.6)
    trials = []
    if host.gpus and "devices" in parts:
        # Large in quick trials, too: what fits into a GPU's cache says nothing of its memory.
        asked = MeasuringPlan(report=_report(record, "devices"), device_bytes=256 << 20, rounds=5 if quick else 11)
        trials.append(
            Trial(name="devices", workers=1, plan=asked, expected=expected(asked, 1, len(host.gpus))),
        )
    if {"pairs", "collectives"} & set(parts):
        collectives = "collectives" in parts
        asked = MeasuringPlan(
            report=_report(record, "workers"),
            pair_bytes=(4 << 20 if quick else 16 << 20) if "pairs" in parts else 0,
            ops=tuple(ops) if collectives else (),
            sizes=chosen if collectives else (),
            backends=(tuple(backends) or usual_backends(host, workers)) if collectives else (),
            rounds=rounds,
            seconds=seconds,
        )
        trials.append(Trial(name="workers", workers=workers, plan=asked, expected=expected(asked, workers, 0)))
    return trials


def carry_out(
    trials: Sequence[Trial],
    *,
    zygote: Zygote,
    record: Path,
    share: bool = False,
    on_event: Callable[[Event], None],
    on_result: Callable[[Result], None],
) -> list[Result]:
    """Runs the trials, each into a record of its own below `record`. One that fails does not keep the next from
    being run; an interrupt ends it all."""
    results = []
    for trial in trials:
        folder = record / "trials" / trial.name
        make_folder(folder)
        asked = folder / "plan.json"
        write_file(asked, msgspec.json.format(msgspec.json.encode(trial.plan)))
        os.close(create(trial.plan.report, append=True))  # the workers only add to it
        outcome = launch(
            RunSettings(
                script=PROGRAM,
                module=True,
                arguments=(str(asked.resolve()),),
                workers=trial.workers,
                staged=False,
                share_record=share,
            ),
            zygote=zygote,
            record=folder,
            on_event=on_event,
            verb="bandwidth",
            oversubscribe=True,  # whoever made the plan has asked
        )
        result = Result(
            trial=trial,
            reports=read_reports(Path(trial.plan.report)),
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
    """What was measured so far. A torn last line is being written."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
    return [decoder.decode(line) for line in lines[:-1] if line]


def usual_backends(host: Host, workers: int) -> tuple[str, ...]:
    """Those that training on this machine could use."""
    return ("memory", "gloo", "nccl") if 2 <= workers <= len(host.gpus) else ("memory", "gloo")


def default_workers(host: Host) -> int:
    """One for each GPU, so that NCCL can be measured; two at least: there is nothing between one worker."""
    return max(2, min(len(host.gpus), host.usable_cores))


# -- what was typed ----------------------------------------------------------------------------------------------------


def check(
    host: Host,
    *,
    workers: int,
    sizes: Sequence[int] = SIZES,
    backends: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    memory: int | None = None,
    oversubscribe: bool = False,
) -> None:
    """UsageError where that cannot be measured here. `memory` is what is free, in bytes."""
    if tuple(parts) == ("devices",):
        if not host.gpus:
            raise UsageError(f"--only devices: {host.name} has no GPU.", advice="Leave out --only devices.")
        return
    if workers < 2:
        raise UsageError(
            f"-n {workers}: bandwidth is measured between workers, and that takes two.", advice="Type: -n 2"
        )
    cores = host.usable_cores
    if workers > cores and not oversubscribe and workers > 2:
        raise UsageError(
            f"{workers} workers were asked for, and {host.name} has {cores} core{'s' * (cores != 1)}: workers that "
            "share a core measure each other's waiting.",
            advice=f"Ask for {max(2, cores)} at most, or insist: --oversubscribe",
        )
    if workers > (most := _MOST_PER_CORE * cores) and workers > 2:
        raise UsageError(f"{workers} workers on {cores} cores would never end.", advice=f"Ask for {most} at most.")
    if "collectives" not in parts:
        return
    if "nccl" in backends and workers > len(host.gpus):
        raise UsageError(
            f"--backends nccl: {workers} workers were asked for, and {host.name} has {len(host.gpus)} "
            f"GPU{'s' * (len(host.gpus) != 1)}; NCCL needs one each.",
            advice="Leave nccl out, or ask for fewer workers with -n.",
        )
    need = max(sizes, default=0) * workers * _COPIES_OF_A_SIZE
    if memory is not None and need > memory:
        raise UsageError(
            f"{workers} workers with messages of {size(max(sizes))} need about {size(need)} of memory, and "
            f"{size(memory)} are free.",
            advice="Ask for smaller ones: --sizes 1K-16M",
        )


def parse_names(text: str, option: str, known: Sequence[str]) -> tuple[str, ...]:
    """`all_reduce,broadcast` as names, each once, in the order of `known`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {text}: there is no {name!r}.", advice=f"There are: {', '.join(known)}")
    return tuple(name for name in known if name in names)


def parse_sizes(text: str) -> tuple[int, ...]:
    """`1K,64K,4M` as bytes, each once, in order; `1K-256M` is every fourfold from the first to the last."""
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
            f"--sizes {whole}: {text.strip()!r} is no size between 4 bytes and {LARGEST >> 30}G.",
            advice="Type it like this: --sizes 1K,64K,4M, or --sizes 1K-256M for every fourfold.",
        )
    return found


def _report(record: Path, name: str) -> str:
    return str((record / "trials" / name / "measurements.jsonl").resolve())
