"""`paceline plan`: predicts steps, efficiency and price on a cluster, from the record of a run on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from paceline.cli import options, series
from paceline.cli.help import verb
from paceline.cli.script_options import ScriptOptions
from paceline.cli.session import Session
from paceline.cli.terminal import plotted, results
from paceline.errors import RecordError, UsageError
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
from paceline.topology import discover
from paceline.units import parse_size

PLAN = "Plan options"
Goal = Literal["time", "cost", "efficiency"]


def _plan(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=PLAN, **more)


Script = Annotated[
    str | None, typer.Argument(metavar="SCRIPT", help="Training script, for --measure.", show_default=False)
]
ClusterOption = Annotated[
    str | None,
    _plan(
        "--cluster",
        metavar="NAME|FILE",
        help="Preset (dgx1x4@25: 4 hosts, 25 Gbit/s), topo --json output, or a cluster's JSON file.",
        show_default="this machine",
    ),
]
Record = Annotated[
    Path,
    typer.Option(
        "--record",
        metavar="DIR",
        help="Record of the workload; of a folder of records, the latest.",
        rich_help_panel=options.OUTPUT,
    ),
]
Workers = Annotated[
    str | None,
    _plan("-n", "--workers", metavar="LIST", help="Numbers of workers: 1,2,4,8,32.", show_default="1, 2, 4 … all"),
]
Weak = Annotated[bool, _plan("--weak", help="Weak scaling: each worker keeps the script's batch.")]
Strategy = Annotated[str, _plan("--strategy", metavar="NAME", help="Strategy of the first table.")]
GoalOption = Annotated[
    Goal | None,
    _plan(
        "--goal", help="Search workers, strategy, batch, algorithm and bucket size for this goal.", show_default=False
    ),
]
Budget = Annotated[
    float,
    _plan(
        "--budget",
        metavar="PRICE",
        help="Most that reaching the accuracy may cost, for --goal.",
        show_default="no limit",
    ),
]
Accuracy = Annotated[
    float | None,
    _plan(
        "--to-accuracy",
        metavar="A",
        help="Predict the time to this accuracy, which the record's run reached: 0.70.",
        show_default=False,
    ),
]
Samples = Annotated[
    float,
    _plan(
        "--samples",
        metavar="N",
        help="Samples that the script's own batch needs to reach the accuracy.",
        show_default="from the record",
    ),
]
Speed = Annotated[
    float,
    _plan(
        "--speed",
        metavar="X",
        help="Speed of the cluster's device relative to the record's: 8 for eight times as fast.",
    ),
]
Activations = Annotated[
    str | None,
    _plan(
        "--activations",
        metavar="SIZExBLOCKS",
        help="One row's activations between two blocks, and the number of blocks, for pipeline and mesh: 2MiBx24.",
        show_default="unknown",
    ),
]
Bandwidth = Annotated[
    Path | None,
    _plan(
        "--bandwidth",
        metavar="FILE",
        help="Measured rates of a host: record or --json document of paceline bandwidth.",
        show_default=False,
    ),
]
Devices = Annotated[
    str | None, _plan("--devices", metavar="LIST", help="GPUs of one host: 1,7.", show_default="the best for a ring")
]
Clusters = Annotated[bool, _plan("--clusters", help="Show the presets, and how to describe a cluster.")]
Check = Annotated[bool, _plan("--check", help="Predict the runs that the records hold, and compare.")]
Measure = Annotated[bool, _plan("--measure", help="First measure SCRIPT on this machine, in a short series.")]
Steps = Annotated[int, _plan("--steps", metavar="K", min=20, help="Steps of each trial of --measure.")]


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command(
        "plan",
        cls=verb(
            "paceline plan --measure train.py --epochs 1",
            "paceline plan --record paceline-runs/2026-11-15T10-22-31-plan-train --cluster dgx1x4 -n 1,2,4,8,32",
            "paceline plan --record paceline-runs/2026-11-15T10-22-31-plan-train --cluster my.json --goal time",
            "paceline plan --clusters",
        ),
        context_settings=options.SCRIPT_LAST,
    )(plan)


def plan(
    context: typer.Context,
    script: Script = None,
    arguments: options.Arguments = None,
    cluster: ClusterOption = None,
    workers: Workers = None,
    weak: Weak = False,
    strategy: Strategy = "mirrored",
    goal: GoalOption = None,
    budget: Budget = 0.0,
    to_accuracy: Accuracy = None,
    samples: Samples = 0.0,
    speed: Speed = 1.0,
    activations: Activations = None,
    bandwidth: Bandwidth = None,
    devices: Devices = None,
    clusters: Clusters = False,
    check: Check = False,
    measure: Measure = False,
    steps: Steps = 40,
    threads: options.Threads = None,
    record: Record = options.RECORDS,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    session = Session.of(context, json=json)
    console = results(json=json)
    if clusters:
        if not quiet:
            show(console, reports.clusters_report())
        if json:
            session.print_document({"clusters": {name: msgspec.to_builtins(one) for name, one in PRESETS.items()}})
        return
    if script is not None and not measure:
        raise UsageError(
            f"{script}: plan runs no script without --measure.", advice=f"Type: paceline plan --measure {script}"
        )
    if speed <= 0:
        raise UsageError(f"--speed {speed:g}: must be above 0.", advice="Type it like this: --speed 8")
    if goal is None and budget:
        raise UsageError("--budget belongs to a search.", advice=f"Add --goal time, or leave --budget {budget:g} out.")
    target = read_cluster(cluster) if cluster else here(discover())
    if bandwidth is not None:
        target = with_bandwidth(target, bandwidth)
    if check:
        found = check_records(records_in(record), target)
        if not quiet:
            show(console, reports.check_report(found, target))
        if json:
            session.print_document(msgspec.to_builtins(found) | {"median": found.median, "worst": found.worst})
        raise typer.Exit(int(not found.runs))
    numbers = parse_workers(workers, target)
    chosen = parse_devices(devices, target)
    if measure:
        if script is None:
            raise UsageError("--measure: there is no script.", advice="Type: paceline plan --measure train.py")
        record = carry_out(session, script, arguments, threads, steps=steps, parent=record, quiet=quiet)
    else:
        record = latest(record)
    work = read_workload(record, accuracy=to_accuracy)
    work = completed(work, activations=activations, samples=samples, accuracy=to_accuracy, record=record)
    own = check_records([record], here(discover()))
    made = make_plan(
        work,
        Fabric(target),
        numbers=numbers,
        strategy=strategy,
        weak=weak,
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


def completed(
    work: Workload, *, activations: str | None, samples: float, accuracy: float | None, record: Path
) -> Workload:
    """The workload with what was typed, and what is missing for what was asked."""
    unknown = list(work.unknown)
    if activations is not None:
        cut, blocks = parse_activations(activations)
        work = msgspec.structs.replace(work, cut=cut, blocks=blocks)
    else:
        unknown.append("bytes of activations between layers: pipeline and mesh are not predicted (--activations)")
    if samples:
        work = msgspec.structs.replace(work, samples_seen=samples)
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
        raise options.no_records(folder, "plan")
    return sorted(path.parent for path in folder.glob("*/run.json"))


def latest(folder: Path) -> Path:
    found = records_in(folder)
    if not found:
        raise RecordError(f"--record {folder}: there is no record.", advice="Type: paceline plan --measure train.py")
    return found[-1]


def carry_out(
    session: Session,
    script: str,
    arguments: list[str] | None,
    threads: int | None,
    *,
    steps: int,
    parent: Path,
    quiet: bool,
) -> Path:
    """Measures the script; returns the record."""
    host = discover()
    asked = ScriptOptions(script=script, arguments=arguments, threads=threads, oversubscribe=True)
    settings = replace(asked.settings(), steps=steps, autotune=False)
    settings = replace(settings, threads=measuring.threads(settings, host))
    course = series.Series.begin(
        session, settings, asked, host=host, budget=None, parent=parent, resume=None, quiet=quiet
    )
    with course.running() as outcome:
        found = measuring.measure(course.bench(label=lambda name: name), host)
        failed = [each for each in found if not each.ok]
        outcome.exit_code = int(bool(failed))
    if outcome.interrupted:
        raise typer.Exit(outcome.exit_code)
    if failed:
        raise RecordError(
            f"{failed[0].name}: {failed[0].message}",
            advice=f"Look at the trial's record: {course.record / 'trials'}",
        )
    return course.record
