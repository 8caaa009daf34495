"""`paceline bandwidth`: measures the links of this machine, and each collective on each backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.progress import TaskID, TextColumn

from paceline import __version__
from paceline.cli import series
from paceline.cli.hosts import on_hosts
from paceline.cli.options import WorkerOptions
from paceline.cli.session import Session
from paceline.cli.terminal import plotted, progress_bar, results, stderr
from paceline.cli.verb import alone, verb
from paceline.comm.measuring.plan import BACKENDS, OPS
from paceline.launch import Event, Notice, Output, Stall
from paceline.options import again, option
from paceline.record.schema import Outcome, Run
from paceline.reports import bandwidth as reports
from paceline.reports.terminal import show
from paceline.settings import RunSettings
from paceline.topology import Host, discover
from paceline.topology.host import read
from paceline.topology.machine import Topology
from paceline.topology.survey import survey
from paceline.trials.bandwidth import series as trials
from paceline.trials.bandwidth.verdict import Verdict, judge
from paceline.units import count

ALL_OPS, ALL_PARTS = ",".join(OPS), ",".join(trials.PARTS)

app = alone()


@dataclass(frozen=True, kw_only=True)
class BandwidthOptions(WorkerOptions):
    workers: int | None = option(
        None,
        "Number of workers to measure between.",
        "N",
        names="-n --workers",
        usual="one per GPU, at least 2; all workers of several hosts",
    )
    ops: str = option(ALL_OPS, f"Collectives to measure: {', '.join(OPS)}.", "LIST", usual="all", panel="")
    sizes: str | None = option(
        None,
        "Message sizes of the collectives: 1K,64K,4M; or a range in steps of 4×: 1K-256M.",
        "LIST",
        usual="1K-256M",
        panel="",
    )
    backends: str | None = option(
        None,
        "Backends to measure: memory, gloo, nccl, network (the algorithms between hosts, by every worker), hosts "
        "(memory within hosts, network between them).",
        "LIST",
        usual="memory,gloo; also nccl if each worker has a GPU. On several hosts: gloo,network,hosts",
        panel="",
    )
    only: str = option(
        ALL_PARTS,
        "Parts to measure: devices (GPU copies and pairs), pairs (of workers), collectives.",
        "LIST",
        usual="all",
        panel="",
    )
    quick: bool = option(False, "Measure fewer sizes and rounds; takes seconds.", panel="")
    share_record: bool = again(RunSettings, "share_record")


@verb(
    app,
    "paceline bandwidth --quick",
    "paceline bandwidth -n 4 --ops all_reduce --sizes 1K-64M",
    "paceline bandwidth --hosts a:2,b:2 --quick",
)
def bandwidth(session: Session, asked: BandwidthOptions) -> None:
    labels, share = asked.labels(), asked.share_record
    host = discover()
    number = on_hosts(session, asked, trials.SETTINGS, asked.workers, trials.default_workers(host))
    specs = session.hosts.specs if session.hosts is not None else []
    hosts = [spec.workers for spec in specs] if len(specs) > 1 else []
    parts = trials.parse_names(asked.only, "--only", trials.PARTS)
    ops = trials.parse_names(asked.ops, "--ops", OPS)
    sizes = trials.QUICK_SIZES if asked.quick else trials.SIZES
    if asked.sizes is not None:
        sizes = trials.parse_sizes(asked.sizes)
    backends = trials.usual_backends(host, number, hosts)
    if asked.backends is not None:
        backends = trials.parse_names(asked.backends, "--backends", BACKENDS)
    # Checked before the record's folder is made, so that a user's mistake leaves no record.
    trials.check(
        host,
        workers=number,
        sizes=sizes,
        backends=backends,
        parts=parts,
        memory=free_memory(),
        oversubscribe=asked.oversubscribe or asked.workers is None or session.hosts is not None,
        hosts=hosts,
    )
    record = session.open_record(asked.record, "bandwidth", share=share, labels=labels)
    plan = trials.plan(
        host, workers=number, ops=ops, sizes=sizes, backends=backends, parts=parts, quick=asked.quick, hosts=hosts
    )
    topology = survey()
    measured, outcome = carry_out(plan, session, record, share=share)
    verdict = judge(
        [report for result in measured for report in result.reports],
        topology,
        workers=number,
        hosts=[spec.name for spec in specs] if hosts else (),
        notes=notes(host, topology, measured),
        failures=[result.failure for result in measured if result.failure],
        interrupted=outcome.interrupted,
    )
    series.write_verdict(record, verdict)
    drawn = {"collectives": reports.curves(verdict), "pairs": reports.pair_maps(verdict)}
    title = count(verdict.workers, "worker")
    made = [plotted(charts, record / "plots" / f"{name}.svg", title) for name, charts in drawn.items()]
    plots = [plot for plot in made if plot is not None]
    if not session.quiet:
        show(results(json=session.json), reports.report(verdict))
    code = outcome.exit_code if outcome.interrupted else exit_code(verdict)
    told = series.document(verdict, trouble(verdict) if code else None, plots=[str(plot) for plot in plots])
    series.finish(session, told, code=code, plots=plots)


def carry_out(
    plan: list[trials.Trial], session: Session, record: Path, *, share: bool
) -> tuple[list[trials.Result], Outcome]:
    """Runs the plan with a progress bar. Writes run.json even after an error or an interrupt."""
    console, quiet = stderr(), session.quiet
    measured: list[trials.Result] = []
    bar = progress_bar(console, TextColumn("{task.completed} of {task.total}"), quiet=quiet)
    task = TaskID(0)

    def on_event(event: Event) -> None:
        if isinstance(event, Output) and event.stream == "stdout":
            # A worker prints one line per measurement.
            last = event.data.decode(errors="replace").strip().splitlines()[-1:]
            bar.update(task, advance=event.data.count(b"\n"), description="".join(last)[:44].ljust(44))
        if isinstance(event, Notice | Stall):
            console.print(f"paceline: {event.text}", style="yellow", soft_wrap=True)

    def on_result(result: trials.Result) -> None:
        measured.append(result)
        bar.update(task, completed=sum(each.trial.expected for each in measured))
        if result.failure:
            console.print(f"paceline: {result.trial.name}: failed\n{result.failure}", style="red", soft_wrap=True)
        elif not quiet and not console.is_terminal:
            done = count(len(result.reports), "measurement")
            console.print(f"paceline: {result.trial.name}: {done}", soft_wrap=True)

    run = Run(
        paceline=__version__,
        verb="bandwidth",
        script=trials.PROGRAM,
        arguments=[],
        settings={trial.name: {"workers": trial.workers} | msgspec.to_builtins(trial.plan) for trial in plan},
    )
    # An interrupt between two trials ends the block; `launch` handles an interrupt during a trial.
    with series.recorded(record, run) as outcome, bar:
        task = bar.add_task("starting".ljust(44), total=sum(trial.expected for trial in plan))
        trials.carry_out(
            plan, zygote=session.workers(), record=record, share=share, on_event=on_event, on_result=on_result
        )
        series.conclude(outcome, measured)
    return measured, outcome


def notes(host: Host, topology: Topology, measured: list[trials.Result]) -> list[str]:
    """Measurements and comparisons that were not possible here, and what to type."""
    found = []
    devices = next((result for result in measured if result.trial.name == "devices"), None)
    if devices is not None and not devices.reports and not devices.failure and not devices.interrupted:
        found.append(
            f"torch can use none of this machine's {count(len(host.gpus), 'GPU')}. To see why, type: paceline doctor"
        )
    if devices is not None and devices.reports and not topology.devices:
        found.append("The usual rates of the GPU links are unknown without NVML. Type: pip install nvidia-ml-py")
    return found


def exit_code(verdict: Verdict) -> int:
    """0 only if everything was measured. A weak link is a result, not a failure."""
    nothing = not (verdict.copies or verdict.pairs or verdict.collectives)
    return int(nothing or verdict.interrupted or bool(verdict.failures))


def trouble(verdict: Verdict) -> series.Trouble:
    """Why the exit code is not 0."""
    if verdict.interrupted:
        why, advice = "interrupted before all measurements were made", "Type the command again."
    else:
        why, advice = "nothing was measured", "To see what is wrong, type: paceline doctor"
    found = [*verdict.failures, *([] if verdict.interrupted else verdict.notes), why]
    return series.Trouble("Interrupted" if verdict.interrupted else "MeasurementFailed", found[0], advice)


def free_memory() -> int | None:
    """Bytes of memory that a process could allocate; None if the kernel does not report them."""
    for line in read(Path("/proc/meminfo")).splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None
