"""`paceline plan`: predicts steps, efficiency and price on a cluster, from the record of a run on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import typer

from paceline.cli import series
from paceline.cli.options import RECORDS, OutputOptions, no_records
from paceline.cli.session import Session
from paceline.cli.terminal import plotted, results
from paceline.cli.verb import alone, run_settings, verb
from paceline.errors import RecordError, UsageError
from paceline.options import HOW, OUTPUT, again, argument, option
from paceline.plan import measure as measuring
from paceline.plan.check import check as check_records
from paceline.plan.check import error_of
from paceline.plan.cluster import PRESETS, Cluster, read_cluster, with_bandwidth
from paceline.plan.fabric import Fabric
from paceline.plan.plan import make_plan
from paceline.plan.workload import Workload, read_workload
from paceline.record import read_run
from paceline.reports import plan as reports
from paceline.reports.terminal import show
from paceline.settings import RunSettings
from paceline.topology import discover
from paceline.units import parse_size

Goal = Literal["time", "cost", "efficiency"]


app = alone()


@dataclass(frozen=True, kw_only=True)
class PlanOptions(OutputOptions):
    PANEL: ClassVar = "Plan options"
    script: str | None = argument("SCRIPT", "Training script, for --measure.", default=None)
    arguments: tuple[str, ...] = again(RunSettings, "arguments")
    cluster: str | None = option(
        None,
        "Preset (dgx1x4@25: 4 hosts, 25 Gbit/s), topo --json output, or a cluster's JSON file.",
        "NAME|FILE",
        usual="this machine",
    )
    workers: str | None = option(
        None, "Numbers of workers: 1,2,4,8,32.", "LIST", names="-n --workers", usual="1, 2, 4 … all"
    )
    weak: bool = option(False, "Weak scaling: each worker keeps the script's batch.")
    strategy: str = option("mirrored", "Strategy of the first table.", "NAME")
    goal: Goal | None = option(None, "Search workers, strategy, batch, algorithm and bucket size for this goal.")
    budget: float = option(0.0, "Most that reaching the accuracy may cost, for --goal.", "PRICE", usual="no limit")
    to_accuracy: float | None = option(
        None, "Predict the time to this accuracy, which the record's run reached: 0.70.", "A"
    )
    samples: float = option(
        0.0, "Samples that the script's own batch needs to reach the accuracy.", "N", usual="from the record"
    )
    speed: float = option(
        1.0, "Speed of the cluster's device relative to the record's: 8 for eight times as fast.", "X"
    )
    activations: str | None = option(
        None,
        "One row's activations between two blocks, and the number of blocks, for pipeline and mesh: 2MiBx24.",
        "SIZExBLOCKS",
        usual="unknown",
    )
    bandwidth: Path | None = option(
        None, "Measured rates of a host: record or --json document of paceline bandwidth.", "FILE"
    )
    devices: str | None = option(None, "GPUs of one host: 1,7.", "LIST", usual="the best for a ring")
    clusters: bool = option(False, "Show the presets, and how to describe a cluster.")
    check: bool = option(False, "Predict the runs that the records hold, and compare.")
    measure: bool = option(False, "First measure SCRIPT on this machine, in a short series.")
    steps: int = option(40, "Steps of each trial of --measure.", "K", least=20)
    threads: int | None = again(RunSettings, "threads", panel=HOW)
    record: Path = option(RECORDS, "Record of the workload; of a folder of records, the latest.", "DIR", panel=OUTPUT)


@verb(
    app,
    "paceline plan --measure train.py --epochs 1",
    "paceline plan --record paceline-runs/2026-11-15T10-22-31-plan-train --cluster dgx1x4 -n 1,2,4,8,32",
    "paceline plan --record paceline-runs/2026-11-15T10-22-31-plan-train --cluster my.json --goal time",
    "paceline plan --clusters",
)
def plan(session: Session, asked: PlanOptions) -> None:
    console, quiet, json = results(json=session.json), session.quiet, session.json
    script, goal, budget, speed, record = asked.script, asked.goal, asked.budget, asked.speed, asked.record
    if asked.clusters:
        if not quiet:
            show(console, reports.clusters_report())
        if json:
            session.print_document({"clusters": {name: msgspec.to_builtins(one) for name, one in PRESETS.items()}})
        return
    if script is not None and not asked.measure:
        raise UsageError(
            f"{script}: plan runs no script without --measure.", advice=f"Type: paceline plan --measure {script}"
        )
    if speed <= 0:
        raise UsageError(f"--speed {speed:g}: must be above 0.", advice="Type it like this: --speed 8")
    if goal is None and budget:
        raise UsageError("--budget belongs to a search.", advice=f"Add --goal time, or leave --budget {budget:g} out.")
    target = read_cluster(asked.cluster) if asked.cluster else here(discover())
    if asked.bandwidth is not None:
        target = with_bandwidth(target, asked.bandwidth)
    if asked.check:
        found = check_records(records_in(record), target)
        if not quiet:
            show(console, reports.check_report(found, target))
        if json:
            session.print_document(msgspec.to_builtins(found) | {"median": found.median, "worst": found.worst})
        raise typer.Exit(int(not found.runs))
    numbers = parse_workers(asked.workers, target)
    chosen = parse_devices(asked.devices, target)
    if asked.measure:
        if script is None:
            raise UsageError("--measure: there is no script.", advice="Type: paceline plan --measure train.py")
        record = carry_out(session, script, asked)
    else:
        record = latest(record)
    work = read_workload(record, accuracy=asked.to_accuracy)
    work = completed(work, asked, record)
    own = check_records([record], here(discover()))
    made = make_plan(
        work,
        Fabric(target),
        numbers=numbers,
        strategy=asked.strategy,
        weak=asked.weak,
        speed=speed,
        devices=chosen,
        goal=goal,
        budget=budget,
        error=error_of(own),
        checked=len(own.runs),
    )
    if read_run(record).verb == "plan":
        series.write_verdict(record, made)
    plot = plotted(reports.charts(made.rows, made.others, made.knee), record / "plots" / "plan.svg", made.script)
    if not quiet:
        show(console, reports.report(made))
        if plot is not None:
            console.print(f"plot:   {plot}", soft_wrap=True)
        console.print(f"record: {record}", soft_wrap=True)
    if json:
        session.record = record
        session.print_document(msgspec.to_builtins(made) | {"plot": str(plot) if plot else None})


def here(host: Any) -> Cluster:
    """This machine as a cluster of one host."""
    from paceline.plan.cluster import of_topology
    from paceline.topology.survey import survey

    found = of_topology(survey(), Cluster(name="this machine"))
    return found if found.host.devices else msgspec.structs.replace(found, slots=max(host.usable_cores, 1))


def parse_workers(text: str | None, cluster: Cluster) -> list[int]:
    """`-n 1,2,4`, or the doublings up to all workers of the cluster."""
    if text is None:
        found = [1]
        while found[-1] * 2 <= cluster.workers:
            found.append(found[-1] * 2)
        return found if found[-1] == cluster.workers else [*found, cluster.workers]
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"-n {text}: not a list of numbers.", advice="Type it like this: -n 1,2,4") from None
    if found[0] < 1 or found[-1] > cluster.workers:
        raise UsageError(
            f"-n {text}: the cluster has {cluster.hosts:,} hosts of {cluster.slots:,} workers: {cluster.workers:,}.",
            advice=f"Type numbers from 1 to {cluster.workers}, or a larger --cluster, such as dgx1x64.",
        )
    return found


def parse_devices(text: str | None, cluster: Cluster) -> tuple[int, ...]:
    """`--devices 1,7` as GPU numbers."""
    if text is None:
        return ()
    known = {gpu.index for gpu in cluster.host.devices}
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) in known for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(
            f"--devices {text}: the host's GPUs are {', '.join(map(str, sorted(known))) or 'none'}.",
            advice="Type it like this: --devices 1,7",
        )
    return tuple(int(part) for part in parts)


def parse_activations(text: str) -> tuple[float, int]:
    """`2MiBx24` as bytes and a number of blocks."""
    size, _, blocks = text.rpartition("x")
    known = parse_size(size)
    if not known or not blocks.isdecimal() or not int(blocks):
        raise UsageError(
            f"--activations {text}: not a size and a number of blocks.", advice="Type it like this: 2MiBx24"
        )
    return float(known), int(blocks)


def completed(work: Workload, asked: PlanOptions, record: Path) -> Workload:
    """The workload with what was typed, and what is missing for what was asked."""
    unknown, accuracy = list(work.unknown), asked.to_accuracy
    if asked.activations is not None:
        cut, blocks = parse_activations(asked.activations)
        work = msgspec.structs.replace(work, cut=cut, blocks=blocks)
    else:
        unknown.append("bytes of activations between layers: pipeline and mesh are not predicted (--activations)")
    if asked.samples:
        work = msgspec.structs.replace(work, samples_seen=asked.samples)
    if accuracy is not None:
        if not work.critical:
            raise RecordError(
                f"--to-accuracy {accuracy:g}: {record} has no gradient noise scale: how many more samples a larger "
                "batch needs is unknown.",
                advice="Measure it: paceline run -n 2 --noise-scale train.py; or: paceline plan --measure train.py",
            )
        if not work.samples_seen:
            unknown.append(f"samples to accuracy {accuracy:g}: no run logged it (--samples), so times are relative")
    return msgspec.structs.replace(work, unknown=tuple(unknown))


def records_in(folder: Path) -> list[Path]:
    """A record, or all records of a folder, oldest first."""
    if (folder / "run.json").is_file():
        return [folder]
    if not folder.is_dir():
        raise no_records(folder, "plan")
    return sorted(path.parent for path in folder.glob("*/run.json"))


def latest(folder: Path) -> Path:
    found = records_in(folder)
    if not found:
        raise RecordError(f"--record {folder}: there is no record.", advice="Type: paceline plan --measure train.py")
    return found[-1]


def carry_out(session: Session, script: str, asked: PlanOptions) -> Path:
    """Measures the script; returns the record."""
    host = discover()
    settings = run_settings(script=script, arguments=asked.arguments, threads=asked.threads)
    settings = replace(settings, steps=asked.steps, autotune=False)
    settings = replace(settings, threads=measuring.threads(settings, host))
    series_asked = series.SeriesOptions(record=asked.record, oversubscribe=True)
    course = series.Series.begin(session, settings, series_asked, host=host)
    with course.running() as outcome:
        found = measuring.measure(course.bench(label=lambda name: name), host)
        failed = [each for each in found if not each.ok]
        outcome.exit_code = int(bool(failed))
    if outcome.interrupted:
        raise typer.Exit(outcome.exit_code)
    if failed:
        raise RecordError(
            f"{failed[0].name}: {failed[0].message}", advice=f"Look at the trial's record: {course.record / 'trials'}"
        )
    return course.record
