"""`paceline topo`: shows the links of this machine, or of another machine from a file, and which GPUs to use."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from paceline.cli.hosts import on_hosts
from paceline.cli.options import HostOptions
from paceline.cli.session import Session
from paceline.cli.terminal import results
from paceline.cli.verb import alone, verb
from paceline.comm.measuring.plan import HostTopology
from paceline.errors import LaunchError, UsageError
from paceline.options import OUTPUT, option
from paceline.reports.bandwidth import pair_tables
from paceline.reports.report import Column, Table
from paceline.reports.terminal import show_table
from paceline.topology import discover
from paceline.topology import links as kinds
from paceline.topology.choosing import DeviceChoice, choose
from paceline.topology.host import format_list, parse_list
from paceline.topology.machine import Gpu, Nic, NumaNode, Topology
from paceline.topology.nccl_log import NcclLog, Tree
from paceline.topology.nccl_log import read as read_log
from paceline.topology.reading import read_file, read_text
from paceline.topology.survey import survey
from paceline.topology.usage import UnusedLink, Use, flags, gpus_of, uses
from paceline.trials.bandwidth import series as trials
from paceline.trials.bandwidth.verdict import judge
from paceline.units import count, size

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
        None, "NCCL log file, or record of a run: adds the transport of each pair, and unused NVLinks.", "LOG"
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
    console = results()
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
    console = results()
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


# -- tables -----------------------------------------------------------------------------------------------------------


_STYLES = {"X": "dim", "PIX": "cyan", "PXB": "cyan", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}
_LONG_LIST = 40


def show(
    console: Console,
    topology: Topology,
    *,
    choice: DeviceChoice | None = None,
    log: NcclLog | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Prints everything: the machine, the devices, the links, the choice, NCCL's paths."""
    console.print(_head(topology), style="bold", soft_wrap=True)
    for line in _processor_lines(topology):
        console.print(line, soft_wrap=True)
    if topology.numa:
        console.print()
        console.print(Columns([_box(node, topology) for node in topology.numa]))
    if any(gpu.name or gpu.bus for gpu in topology.devices):
        _show(console, _gpu_rows(topology))
    if any(nic.name != nic.label or nic.gbit_per_s or nic.bus for nic in topology.nics):
        _show(console, _nic_rows(topology.nics))
    used = {(use.a, use.b): use for use in uses(log, topology)} if log else {}
    idle = flags(log, topology) if log else ()
    if topology.devices or any(nic.paths for nic in topology.nics):
        console.print()
        _matrix(console, topology, used, {(flag.a, flag.b) for flag in idle})
    if log is not None:
        console.print()
        _nccl(console, log, gpus_of(log, topology), idle)
    if choice is not None:
        console.print()
        _choice(console, choice)
    for note in notes:
        console.print()
        console.print(note, style="yellow", soft_wrap=True)


def _head(topology: Topology) -> str:
    parts = [
        count(len(topology.devices), "GPU") if topology.devices else "no GPU",
        count(len(topology.nics), "NIC"),
        count(len(topology.numa), "NUMA node"),
    ]
    name = topology.host or "a machine"
    return f"{name} · {' · '.join(parts)}{f' · from {topology.source}' if not topology.host else ''}"


def _processor_lines(topology: Topology) -> list[str]:
    lines = []
    if topology.packages:
        models = sorted({package.model for package in topology.packages})
        cores = sum(package.cores for package in topology.packages)
        logical = sum(len(parse_list(package.cpus)) for package in topology.packages)
        threads = "" if logical == cores else f", {logical} threads"
        lines.append(
            f"CPU     {' / '.join(filter(None, models)) or 'unknown model'}: "
            f"{count(len(topology.packages), 'package')}, {count(cores, 'core')}{threads}"
        )
    if topology.caches:
        letters = {"data": "d", "instruction": "i"}
        each = [
            f"L{cache.level}{letters.get(cache.kind, '')} {size(cache.size)}{_times(len(cache.cpus))}"
            for cache in topology.caches
        ]
        lines.append(f"caches  {', '.join(each)}")
    limits = topology.limits
    if limits.cpus:
        here = [f"CPUs {_cut(limits.cpus)}"]
        here += [f"the time of {limits.quota:g}"] if limits.quota is not None else []
        here += [f"{size(limits.memory)} of memory"] if limits.memory is not None else []
        lines.append(f"granted {', '.join(here)}")
    return lines


def _box(node: NumaNode, topology: Topology) -> Panel:
    lines = []
    if node.cpus:
        lines.append(f"CPUs {_cut(node.cpus)}")
    if node.memory:
        lines.append(f"{size(node.memory)} of memory")
    gpus = [f"GPU{gpu.index}" for gpu in topology.devices if gpu.node == node.id]
    nics = [nic.label for nic in topology.nics if nic.node == node.id]
    lines += [" ".join(each) for each in (gpus, nics) if each]
    if len(node.distances) > 1:
        lines.append(f"distances {' '.join(map(str, node.distances))}")
    return Panel("\n".join(lines), title=f"NUMA node {node.id}", title_align="left", expand=False)


def _gpu_rows(topology: Topology) -> list[dict[str, str]]:
    rows = []
    for gpu in topology.devices:
        pcie = f"{gpu.pcie_generation or '?'} × {gpu.pcie_width or '?'}"
        rows.append(
            {
                "GPU": f"GPU{gpu.index}",
                "model": gpu.name,
                "memory": size(gpu.memory) if gpu.memory else "",
                "PCIe": pcie if gpu.pcie_generation or gpu.pcie_width else "",
                "NVLinks": str(gpu.nvlinks or ""),
                "bus": gpu.bus,
                "NUMA": "" if gpu.node is None else str(gpu.node),
            }
        )
    return rows


def _nic_rows(nics: Sequence[Nic]) -> list[dict[str, str]]:
    return [
        {
            "NIC": nic.label,
            "name": f"{nic.name} ({', '.join(nic.interfaces)})" if nic.interfaces else nic.name,
            "kind": nic.kind,
            "Gbit/s": f"{nic.gbit_per_s:g}" if nic.gbit_per_s else "",
            "state": "" if nic.up is None else "up" if nic.up else "down",
            "bus": nic.bus,
            "NUMA": "" if nic.node is None else str(nic.node),
        }
        for nic in nics
    ]


def _matrix(console: Console, topology: Topology, used: dict[tuple[int, int], Use], idle: set[tuple[int, int]]) -> None:
    """Prints line by line, so that the terminal wraps wide rows instead of cutting them. With NCCL's paths, leaves out
    the NICs, because NCCL's log has no paths to them."""
    found = topology.kinds()
    labels = topology.labels()[: len(topology.devices) if used else None]
    cells: dict[tuple[str, str], Text] = {}
    for a in labels:
        for b in labels:
            cells[a, b] = _cell(found.get((a, b), "?"), used.get(_pair(a, b)), _pair(a, b) in idle)
    widths = {b: max(len(b), *(len(cells[a, b]) for a in labels)) + 2 for b in labels}
    first = max(map(len, labels)) + 2
    affinity = any(gpu.cpus or gpu.node is not None for gpu in topology.devices)
    cpus = max((len(gpu.cpus) for gpu in topology.devices), default=0)
    cpus = max(cpus, len("CPU affinity")) + 2
    head = " " * first + "".join(label.ljust(widths[label]) for label in labels)
    head += f"{'CPU affinity':<{cpus}}NUMA" if affinity else ""
    console.print(Text(head.rstrip(), "bold"), soft_wrap=True)
    gpus = {f"GPU{gpu.index}": gpu for gpu in topology.devices}
    for a in labels:
        line = Text(a.ljust(first), "bold")
        for b in labels:
            line.append_text(cells[a, b]).append(" " * (widths[b] - len(cells[a, b])))
        if affinity and (gpu := gpus.get(a)):
            line.append(f"{gpu.cpus or '–':<{cpus}}{'–' if gpu.node is None else gpu.node}")
        line.rstrip()
        console.print(line, soft_wrap=True)
    console.print()
    for entry in _legend(topology, {found[pair] for pair in cells if pair in found}):
        console.print(Text(entry, "dim"), soft_wrap=True)


def _legend(topology: Topology, there: set[str]) -> list[str]:
    """The kinds of links in this machine, with the usual rate of each."""
    lines = []
    for name, meaning in kinds.LEGEND.items():
        members = {kind for kind in there if (kinds.nvlinks(kind) > 0 if name == "NV#" else kind == name)}
        rates = sorted({(link.gb_per_s, link.kind) for link in topology.links if link.kind in members})
        each = ", ".join(f"{f'{kind} ' if name == 'NV#' else ''}{rate:g}" for rate, kind in rates)
        if members:
            lines.append(f"  {name:<4} {meaning}{f': {each} GB/s' if each else ''}")
    return lines


def _cell(kind: str, use: Use | None, idle: bool) -> Text:
    style = "green" if kinds.nvlinks(kind) else _STYLES.get(kind, "")
    if use is None:
        return Text(kind, style)
    return Text(f"{kind}·{use.transport}{'!' if idle else ''}", "bold red" if idle else style)


def _pair(a: str, b: str) -> tuple[int, int]:
    """GPU labels as a pair of indices; (-1, -1) if one label is not a GPU."""
    found = [re.fullmatch(r"GPU(\d+)", label) for label in (a, b)]
    numbers = sorted(int(each[1]) for each in found if each)
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (-1, -1)


def _nccl(console: Console, log: NcclLog, gpus: dict[int, int], idle: Sequence[UnusedLink]) -> None:
    version = f" {log.version}" if log.version else ""
    console.print(f"NCCL{version}{f', network {log.network}' if log.network else ''}", style="bold", soft_wrap=True)
    places = [
        f"{rank.rank}: {f'GPU{gpus[rank.rank]}' if rank.rank in gpus else rank.bus or '?'}"
        f"{f' on {rank.host}' if log.hosts != 1 and rank.host else ''}"
        for rank in log.ranks
    ]
    if places:
        console.print(f"ranks   {' · '.join(places)}", soft_wrap=True)
    ways = sorted({(route.transport, route.detail) for route in log.routes})
    for transport, detail in ways:
        routes = [route for route in log.routes if (route.transport, route.detail) == (transport, detail)]
        pairs = ", ".join(f"{route.source}→{route.target}" for route in routes)
        named = transport if transport != "other" else ""
        console.print(f"{'/'.join(filter(None, (named, detail)))}: {pairs}", soft_wrap=True)
    for words, shapes in (("ring", _rings(log)), ("tree", _trees(log.trees))):
        for shape, channels in shapes.items():
            console.print(f"{words}    {shape} (channels {format_list(channels)})", soft_wrap=True)
    if log.variables:
        settings = ", ".join(f"{name}={value}" for name, value in sorted(log.variables.items()))
        console.print(f"set     {settings}", soft_wrap=True)
    for flag in idle:
        console.print(f"! {flag.message}", style="bold red", soft_wrap=True)
    for advice in dict.fromkeys(flag.advice for flag in idle):
        console.print(f"→ {advice}", style="yellow", soft_wrap=True)


def _rings(log: NcclLog) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for ring in log.rings:
        shapes.setdefault("→".join(map(str, (*ring.ranks, *ring.ranks[:1]))), []).append(ring.channel)
    return shapes


def _trees(trees: Sequence[Tree]) -> dict[str, list[int]]:
    """Each tree from its root: `0 ← (1, 2 ← 3)`."""
    shapes: dict[str, list[int]] = {}
    for channel in sorted({tree.channel for tree in trees}):
        members = {tree.rank: tree for tree in trees if tree.channel == channel}
        for root in sorted(rank for rank, tree in members.items() if tree.up is None):
            shapes.setdefault(_branch(root, members, frozenset()), []).append(channel)
    return shapes


def _branch(rank: int, members: dict[int, Tree], seen: frozenset[int]) -> str:
    """One subtree as text. `seen` prevents an endless loop: a truncated log may lack a rank, or mix the trees of two
    groups."""
    below = members[rank].down if rank in members and rank not in seen else ()
    inner = [_branch(each, members, seen | {rank}) for each in below]
    if not inner:
        return str(rank)
    return f"{rank} ← {inner[0]}" if len(inner) == 1 else f"{rank} ← ({', '.join(inner)})"


def _choice(console: Console, choice: DeviceChoice) -> None:
    names = " ".join(f"GPU{index}" for index in choice.devices)
    console.print(f"best {choice.k}: {names}", style="bold green", soft_wrap=True)
    console.print(f"  {choice.why}", soft_wrap=True)
    console.print(f"  CUDA_VISIBLE_DEVICES={','.join(map(str, choice.devices))}", soft_wrap=True)


def _show(console: Console, rows: Sequence[dict[str, str]]) -> None:
    """A table without its empty columns."""
    numbers = ("memory", "Gbit/s", "NVLinks", "NUMA")
    columns = [Column(name, name, kind="number" if name in numbers else "text") for name in rows[0]]
    show_table(console, Table(name="devices", title="Devices", columns=columns, rows=rows))


def _times(number: int) -> str:
    return f" × {number}" if number > 1 else ""


def _cut(cpus: str) -> str:
    return cpus if len(cpus) <= _LONG_LIST else f"{cpus[: _LONG_LIST - 1]}…"
