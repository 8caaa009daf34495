"""`paceline topo`: shows the links of this machine, or of another machine from a file, and which GPUs to use."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from rich.console import Console

from paceline.cli.hosts import on_hosts
from paceline.cli.options import HostOptions
from paceline.cli.session import Session
from paceline.cli.tables.topo import show
from paceline.cli.verb import alone, verb
from paceline.comm.measuring.plan import HostTopology
from paceline.errors import LaunchError, UsageError
from paceline.options import OUTPUT, option
from paceline.reports.bandwidth import pair_tables
from paceline.reports.terminal import show_table
from paceline.topology import discover
from paceline.topology.choosing import DeviceChoice, choose
from paceline.topology.machine import Gpu, Topology
from paceline.topology.nccl_log import NcclLog
from paceline.topology.nccl_log import read as read_log
from paceline.topology.reading import read_file, read_text
from paceline.topology.survey import survey
from paceline.topology.usage import flags, uses
from paceline.trials.bandwidth import series as trials
from paceline.trials.bandwidth.verdict import judge

app = alone()


@dataclass(frozen=True, kw_only=True)
class TopoOptions(HostOptions):
    PANEL: ClassVar = ""
    source: Path | None = option(
        None,
        "Read another machine from a file: nvidia-smi topo -m text, NCCL topology XML, or topo --json output.",
        "FILE",
        names="--from",
        usual="this machine",
    )
    choose: int | None = option(None, "Choose the best K GPUs for a ring, with the reason.", "K")
    nccl_log: Path | None = option(
        None,
        "NCCL log file, or record of a run: adds the transport of each pair, and unused NVLinks.",
        "LOG",
    )
    svg: Path | None = option(None, "Draw the topology into this file.", "FILE", panel=OUTPUT)


@verb(
    app,
    "paceline topo",
    "paceline topo --from dgx1.txt --choose 4 --svg dgx1.svg",
    "paceline topo --nccl-log paceline-runs/2026-11-15T10-22-31-train",
    "paceline topo --hosts a,b",
)
def topo(session: Session, asked: TopoOptions) -> None:
    source, nccl_log, svg = asked.source, asked.nccl_log, asked.svg
    notes: list[str] = []
    session.quiet = True  # nothing is told of the hosts
    on_hosts(session, asked, trials.SETTINGS, None, 1)
    if session.hosts is not None:
        _show_hosts(session, {"--from": source, "--choose": asked.choose, "--nccl-log": nccl_log, "--svg": svg})
        return
    topology = _look(notes) if source is None else read_file(source)
    log = _read_log(nccl_log) if nccl_log else None
    if log is not None:
        topology = _under(log, topology, notes, from_file=source is not None)
    choice = None if asked.choose is None else choose(topology, asked.choose)
    if svg is not None:
        _draw(svg, topology, choice, log)
    if session.json:
        session.print_document(document(topology, choice, log, notes, svg))
        return
    console = Console(highlight=False, markup=False)
    show(console, topology, choice=choice, log=log, notes=notes)
    if svg is not None:
        console.print(f"picture: {svg}", soft_wrap=True)


def _show_hosts(session: Session, others: dict[str, Any]) -> None:
    """The topology of each host, and the measured links between them."""
    assert session.hosts is not None
    option = next((name for name, value in others.items() if value is not None), None)
    if option is not None:
        raise UsageError(
            f"{option} is about one machine, and these are several hosts.", advice="Leave one of the options out."
        )
    names = [spec.name for spec in session.hosts.specs]
    with tempfile.TemporaryDirectory(prefix="paceline-topo-") as folder:
        [result] = trials.carry_out(
            [trials.of_hosts(len(names))],
            zygote=session.hosts,
            record=Path(folder),
            on_event=lambda event: None,
            on_result=lambda result: None,
        )
    if result.exit_code:
        raise LaunchError(f"The hosts could not be measured: {result.failure or 'interrupted'}")
    found = {each.host: each for each in result.reports if isinstance(each, HostTopology)}
    rates = judge(result.reports, Topology(), workers=len(names), hosts=names).pairs
    if session.json:
        told = [{"name": name, **msgspec.to_builtins(found[number])} for number, name in enumerate(names)]
        session.print_document({"hosts": told, "between": msgspec.to_builtins(rates)})
        return
    console = Console(highlight=False, markup=False)
    for number, name in enumerate(names):
        console.print(f"{name} (interface {found[number].interface or 'none'})", style="bold cyan")
        show(console, found[number].topology)
        console.print()
    if rates:
        console.print("links between hosts, measured over one connection", style="bold")
        for table in pair_tables(rates, names):
            show_table(console, table)


def document(
    topology: Topology, choice: DeviceChoice | None, log: NcclLog | None, notes: list[str], svg: Path | None
) -> dict[str, Any]:
    """What --json prints; `--from` reads it again."""
    told: dict[str, Any] = msgspec.to_builtins(topology)
    told |= {"choice": msgspec.to_builtins(choice), "notes": notes, "svg": str(svg) if svg else None}
    if log is not None:
        told["nccl"] = msgspec.to_builtins(log) | {
            "uses": msgspec.to_builtins(uses(log, topology)),
            "flags": msgspec.to_builtins(flags(log, topology)),
        }
    return told


def _look(notes: list[str]) -> Topology:
    topology = survey()
    there = len(discover().gpus)
    if there and not topology.devices:
        notes.append(
            f"This machine has {there} GPU{'' if there == 1 else 's'}, but without NVML their models and links are "
            "unknown. Type: pip install nvidia-ml-py"
        )
    return topology


def _read_log(path: Path) -> NcclLog:
    # A record holds one log per worker.
    files = sorted(path.glob("log.rank*.txt")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"--nccl-log {path}: no log.rank*.txt there.", advice="Type a record's folder, or a log file.")
    try:
        return read_log("\n".join(read_text(file, "--nccl-log") for file in files))
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", advice=error.advice) from None


def _under(log: NcclLog, topology: Topology, notes: list[str], *, from_file: bool) -> Topology:
    """The topology to combine with the log: the given one or, if this machine has no GPU, the GPUs in the log."""
    used = sorted({gpu for use in uses(log, topology) for gpu in (use.a, use.b)})
    if not topology.devices and not from_file:
        notes.append("The links of the machine that wrote the log are unknown. Give that machine's matrix: --from FILE")
        return Topology(source="NCCL log", devices=tuple(Gpu(index=index) for index in used))
    unknown = [f"GPU{index}" for index in used if topology.gpu(index) is None]
    if unknown:
        notes.append(f"The log names {', '.join(unknown)}, which this topology lacks. Is the log from another machine?")
    return topology


def _draw(path: Path, topology: Topology, choice: DeviceChoice | None, log: NcclLog | None) -> None:
    from paceline.topology.picture import draw

    try:
        path.write_text(draw(topology, choice=choice, flags=flags(log, topology) if log else ()))
    except OSError as error:
        raise UsageError(
            f"--svg {path}: {error.strerror or error}.", advice="Type the path of a file that can be written."
        ) from None
