"""Reads and writes the text of `nvidia-smi topo -m`.

The reader accepts common variants: terminal escape codes, tabs or spaces, with or without legend, NIC rows and affinity
columns. Contradictory text raises an error that names the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from paceline.errors import UsageError
from paceline.topology import links as kinds
from paceline.topology.host import parse_list
from paceline.topology.machine import Gpu, Link, Nic, NumaNode, Path, Topology

SOURCE = "nvidia-smi topo -m"
ADVICE = "Save the full output again: nvidia-smi topo -m > topology.txt"

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EXTRA = re.compile(r"\b(CPU Affinity|NUMA Affinity|GPU NUMA ID)\b")
_GPU = re.compile(r"GPU(\d+)")
_NOTHING = {"", "N/A"}


@dataclass
class _Reading:
    """The content read so far. Lines are counted from 1."""

    columns: list[str]
    extras: list[str]
    kinds: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)  # kind of link, and its line
    rows: dict[str, int] = field(default_factory=dict)
    affinity: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # NIC0: mlx5_0


def read(text: str) -> Topology:
    """The topology in the text. Raises UsageError, with the line, if the text is not a valid matrix."""
    reading: _Reading | None = None
    legend = last = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _ESCAPES.sub("", raw).rstrip()
        if not line.strip():
            continue
        last = number
        if reading is None:
            reading = _header(line, number)
        elif re.match(r"\s*Legend\b", line):
            legend = number
        elif named := re.match(r"\s*(\S+):\s+(\S+)$", line):
            reading.names[named[1]] = named[2]
        elif not legend and not line.startswith("NIC Legend"):
            _row(reading, line, number)
    if reading is None:
        raise _wrong(1, "the text is empty", "a header that begins with GPU0")
    missing = [column for column in reading.columns if column not in reading.rows]
    if missing:
        raise _wrong(last, f"the text ends without a row for {missing[0]}", "a row for each column of the header")
    return _topology(reading)


def write(topology: Topology) -> str:
    """The matrix in the layout of nvidia-smi, readable by `read`."""
    labels, found = topology.labels(), topology.kinds()
    rows = ["\t".join(["", *labels, "CPU Affinity", "NUMA Affinity"])]
    gpus = {f"GPU{gpu.index}": gpu for gpu in topology.devices}
    for label in labels:
        cells = [found.get((label, other), "N/A") for other in labels]
        row = [label, *(" X " if cell == "X" else cell for cell in cells)]
        if gpu := gpus.get(label):
            row += [gpu.cpus or "N/A", "N/A" if gpu.node is None else str(gpu.node)]
        rows.append("\t".join(row))
    rows += ["", "Legend:", "", *(f"  {kind:<4} = {meaning}" for kind, meaning in kinds.LEGEND.items())]
    named = [nic for nic in topology.nics if nic.name != nic.label]
    if named:
        rows += ["", "NIC Legend:", "", *(f"  {nic.label}: {nic.name}" for nic in named)]
    return "\n".join(rows) + "\n"


def _header(line: str, number: int) -> _Reading:
    extras = [found[1] for found in _EXTRA.finditer(line)]
    columns = _EXTRA.sub(" ", line).split()
    if not columns or not _GPU.fullmatch(columns[0]):
        raise _wrong(number, f"{_short(line)!r} is not a header", "a line that names GPU0, GPU1, …")
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise _wrong(number, f"the header names {twice[0]} twice", "each device once")
    return _Reading(columns, extras)


def _row(reading: _Reading, line: str, number: int) -> None:
    label, *cells = line.split()
    count = len(reading.columns)
    if label not in reading.columns:
        raise _wrong(number, f"{_short(label)!r} is not in the header", "only rows for the columns of the header")
    if label in reading.rows:
        raise _wrong(number, f"a second row for {label}", f"one row (the first is line {reading.rows[label]})")
    if len(cells) < count:
        raise _wrong(number, f"{label} has {len(cells)} links", f"one for each of the header's {count} columns")
    reading.rows[label] = number
    for other, cell in zip(reading.columns, cells, strict=False):
        _cell(reading, label, other, kinds.OLDER.get(cell, cell), number)
    rest = cells[count:]
    # Only a text with tabs distinguishes an empty first cell from a missing cell.
    if "\t" in line and len(parts := line.split("\t")) > count + 1 and not parts[count + 1].strip():
        rest = ["", *rest]
    if len(rest) > max(len(reading.extras), 2):
        raise _wrong(number, f"{label} has {count + len(rest)} cells", f"{count} links and its affinity")
    reading.affinity[label] = dict(zip(reading.extras, rest, strict=False))
    for name in ("CPU Affinity", "NUMA Affinity"):
        text = reading.affinity[label].get(name, "")
        if text not in _NOTHING and not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
            raise _wrong(number, f"{_short(text)!r} is not a valid {name} of {label}", "numbers such as 0-19,40-59")


def _cell(reading: _Reading, label: str, other: str, kind: str, number: int) -> None:
    if kind == "N/A" and label != other:
        return
    if not kinds.known(kind):
        raise _wrong(number, f"{_short(kind)!r} between {label} and {other} is not a link", "X, NV#, PIX, PXB, PHB, …")
    if (kind == "X") != (label == other):
        raise _wrong(number, f"{kind} between {label} and {other}", "X on the diagonal only")
    before = reading.kinds.get((other, label))
    if before is not None and before[0] != kind:
        raise _wrong(number, f"{label} to {other} is {kind}", f"{before[0]}, as line {before[1]} says for {other}")
    reading.kinds[label, other] = (kind, number)


def _topology(reading: _Reading) -> Topology:
    gpus, links, nics = [], [], []
    for place, label in enumerate(reading.columns):
        if found := _GPU.fullmatch(label):
            index = int(found[1])
            gpus.append(_gpu(index, reading.affinity[label]))
            for other in reading.columns[place + 1 :]:
                if (peer := _GPU.fullmatch(other)) and (label, other) in reading.kinds:
                    kind = reading.kinds[label, other][0]
                    a, b = sorted((index, int(peer[1])))
                    links.append(Link(a=a, b=b, kind=kind, gb_per_s=kinds.usual_rate(kind)))
        else:
            paths = tuple(
                Path(to=other, kind=reading.kinds[label, other][0])
                for other in reading.columns
                if other != label and (label, other) in reading.kinds
            )
            nics.append(Nic(label=label, name=reading.names.get(label, label), paths=paths, node=_near(paths, reading)))
    gpus.sort(key=lambda gpu: gpu.index)
    links.sort(key=lambda link: (link.a, link.b))
    return Topology(source=SOURCE, devices=tuple(gpus), links=tuple(links), numa=_nodes(gpus), nics=tuple(nics))


def _gpu(index: int, affinity: dict[str, str]) -> Gpu:
    cpus, nodes = affinity.get("CPU Affinity", ""), affinity.get("NUMA Affinity", "")
    return Gpu(
        index=index,
        cpus="" if cpus in _NOTHING else cpus,
        node=None if nodes in _NOTHING else parse_list(nodes)[0],
    )


def _near(paths: tuple[Path, ...], reading: _Reading) -> int | None:
    """The NUMA node of a NIC: the node of a GPU that the NIC reaches within the node. The text gives no affinity for
    NICs."""
    for path in paths:
        if path.kind != "SYS" and (found := _GPU.fullmatch(path.to)):
            return _gpu(int(found[1]), reading.affinity[path.to]).node
    return None


def _nodes(gpus: list[Gpu]) -> tuple[NumaNode, ...]:
    """The NUMA nodes with GPUs; the text mentions no other nodes."""
    cpus = {gpu.node: gpu.cpus for gpu in gpus if gpu.node is not None}
    return tuple(NumaNode(id=node, cpus=cpus[node]) for node in sorted(cpus))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "…"


def _wrong(line: int, found: str, expected: str) -> UsageError:
    return UsageError(f"Line {line} of the matrix: {found}; expected: {expected}.", advice=ADVICE)
