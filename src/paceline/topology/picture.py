"""Draws a machine as an SVG: its GPUs and links, and the CPUs, memory and NICs of each NUMA node.

GPUs are placed on a circle, so that no link crosses a third GPU. GPUs of the same NUMA node are neighbours and have the
colour of the node. The picture shows NVLinks (a thicker line means more links) and PCIe links within a switch. If all
pairs have the same number of NVLinks, the picture shows one NVLink switch. A `Look` has the colours of a light or dark
page, and the width of a screen or of a phone.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from paceline.topology import links as kinds
from paceline.topology.choosing import DeviceChoice
from paceline.topology.host import parse_list
from paceline.topology.machine import Gpu, NumaNode, Topology
from paceline.topology.rings import links_of
from paceline.topology.usage import UnusedLink

_NODES = ("#4477aa", "#ee8866", "#44aa99", "#aa4499", "#999933", "#66ccee", "#cc6677", "#777777")
_GPU, _LINE = 27, 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Colours and sizes of the picture. `columns`: panels of NUMA nodes side by side."""

    paper: str = "white"
    ink: str = "#222222"
    nvlink: str = "#5a9e1b"
    pcie: str = "#bbbbbb"
    chosen: str = "#d55e00"
    idle: str = "#cc0000"
    tint: float = 0.08  # opacity of a panel
    width: int = 720
    radius: int = 200
    columns: int = 2

    @property
    def letters(self) -> int:
        """Letters of size 12 in a line."""
        return int((self.width - 36) / 7.2)

    @property
    def panel(self) -> int:
        return (self.width - 32 - 8 * (self.columns - 1)) // self.columns


LIGHT = Look()
DARK = Look(paper="none", ink="#e6e9ef", nvlink="#8bd450", pcie="#6b7686", chosen="#ff9b54", idle="#ff8a7d", tint=0.22)


def narrow(look: Look) -> Look:
    """The same colours, for a phone."""
    return replace(look, width=340, radius=126, columns=1)


def draw(
    topology: Topology,
    *,
    choice: DeviceChoice | None = None,
    flags: Sequence[UnusedLink] = (),
    look: Look = LIGHT,
) -> str:
    """The SVG. Highlights the GPUs and the ring of `choice`, and the pairs in `flags`, whose NVLinks are not used."""
    width, parts, top = look.width, [], 28.0
    for line in textwrap.wrap(_title(topology), look.width // 11) or [""]:
        parts.append(_text(width / 2, top, line, size=17, anchor="middle", bold=True, fill=look.ink))
        top += 20
    if topology.packages:
        for line in textwrap.wrap(_processors(topology), look.letters):
            parts.append(_text(width / 2, top, line, size=12, anchor="middle", fill=look.ink))
            top += _LINE
    if topology.devices:
        tall = look.radius if len(topology.devices) > 2 else 0  # up to two GPUs are side by side
        places = _places(topology.devices, (width / 2, top + tall + _GPU + 22), look.radius)
        parts += _links(topology, places, choice, flags, look)
        parts += [_gpu(gpu, places[gpu.index], topology, choice, look) for gpu in topology.devices]
        top += 2 * (tall + _GPU) + 50
        key, top = _key(top, topology, choice, flags, look)
        parts += key
        told = (
            [(f"chosen: {', '.join(f'GPU{i}' for i in choice.devices)}: {choice.why}", look.chosen)] if choice else []
        )
        for text, colour in (*told, *((flag.message, look.idle) for flag in flags)):
            for line in textwrap.wrap(text, look.letters):
                parts.append(_text(24, top, line, size=12, fill=colour))
                top += _LINE
    panels, height = _panels(topology, top + 6, look)
    parts += panels
    bottom = top + 6 + height + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom:.0f}" '
        f'viewBox="0 0 {width} {bottom:.0f}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="{look.paper}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _title(topology: Topology) -> str:
    name = topology.host or topology.source or "a machine"
    models = sorted({gpu.name for gpu in topology.devices if gpu.name})
    if not topology.devices:
        return name
    return f"{name}: {len(topology.devices)} × {' / '.join(models) or 'GPU'}"


def _processors(topology: Topology) -> str:
    models = sorted({package.model for package in topology.packages if package.model})
    cores = sum(package.cores for package in topology.packages)
    last = topology.caches[-1] if topology.caches else None
    cache = f", L{last.level} {len(last.cpus)} × {last.size / 2**20:g} MiB" if last else ""
    return f"{len(topology.packages)} × {' / '.join(models) or 'CPU'}, total cores: {cores}{cache}"


def _places(gpus: Sequence[Gpu], centre: tuple[float, float], most: int) -> dict[int, tuple[float, float]]:
    order = sorted(gpus, key=lambda gpu: (-1 if gpu.node is None else gpu.node, gpu.index))
    radius = most if len(order) > 2 else most * 0.6
    found = {}
    for number, gpu in enumerate(order):
        # Half a step past the top, so that the first node's GPUs are on the right and the second node's on the left.
        angle = 2 * math.pi * (number + 0.5) / len(order) - math.pi / 2
        found[gpu.index] = (centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle))
    return found if len(order) > 1 else {order[0].index: centre}


def _links(
    topology: Topology,
    places: dict[int, tuple[float, float]],
    choice: DeviceChoice | None,
    flags: Sequence[UnusedLink],
    look: Look,
) -> list[str]:
    idle = {(flag.a, flag.b) for flag in flags}
    ring = {tuple(sorted(pair)) for pair in links_of(choice.ring)} if choice else set()
    parts = []
    counts = [kinds.nvlinks(link.kind) for link in topology.links]
    if switched := len(places) > 2 and len(set(counts)) == 1 and counts[0] > 0:
        parts += _switch(counts[0], places, look)
    for link in sorted(topology.links, key=lambda link: link.gb_per_s):
        pair, count = (link.a, link.b), kinds.nvlinks(link.kind)
        label = f"GPU{link.a}–GPU{link.b}: {link.kind}, {link.gb_per_s:g} GB/s"
        line = (places[link.a], places[link.b])
        if count and not switched:
            parts.append(_line(*line, look.nvlink, 1.5 + 1.6 * min(count, 6), label))
        elif link.kind in ("PIX", "PXB") and not count:
            parts.append(_line(*line, look.pcie, 1.5, label))
        if pair in ring:
            parts.append(_line(*line, look.chosen, 2.5, label))
        if pair in idle:
            parts.append(_line(*line, look.idle, 3, f"{label}, not used", dashes=True))
    return parts


def _switch(count: int, places: dict[int, tuple[float, float]], look: Look) -> list[str]:
    x = sum(place[0] for place in places.values()) / len(places)
    y = sum(place[1] for place in places.values()) / len(places)
    parts = [_line((x, y), place, look.nvlink, 1.5 + 1.6 * min(count, 6), f"NV{count}") for place in places.values()]
    return [
        *parts,
        f'<rect x="{x - 48:.1f}" y="{y - 17:.1f}" width="96" height="34" rx="6" fill="{LIGHT.nvlink}"/>',
        _text(x, y + 5, f"NVLink × {count}", size=13, anchor="middle", fill="white", bold=True),
    ]


def _gpu(gpu: Gpu, place: tuple[float, float], topology: Topology, choice: DeviceChoice | None, look: Look) -> str:
    x, y = place
    chosen = choice is not None and gpu.index in choice.devices
    ring = f'stroke="{look.chosen}" stroke-width="5"' if chosen else 'stroke="white" stroke-width="2"'
    facts = [f"GPU{gpu.index}", gpu.name, gpu.bus, "" if gpu.node is None else f"NUMA node {gpu.node}"]
    return (
        f"<g><title>{escape(', '.join(filter(None, facts)))}</title>"
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_GPU}" fill="{_colour(gpu.node, topology)}" {ring}/>'
        + _text(x, y + 5, f"GPU{gpu.index}", size=13, anchor="middle", fill="white", bold=True)
        + "</g>"
    )


def _key(
    y: float, topology: Topology, choice: DeviceChoice | None, flags: Sequence[UnusedLink], look: Look
) -> tuple[list[str], float]:
    """The legend, with only the kinds of lines that the picture contains, and where the next line goes."""
    entries = []
    if any(kinds.nvlinks(link.kind) for link in topology.links):
        entries.append((look.nvlink, "NVLink (thicker: more links)"))
    if any(link.kind in ("PIX", "PXB") for link in topology.links):
        entries.append((look.pcie, "PCIe switch"))
    if choice and len(choice.ring) > 1:
        entries.append((look.chosen, "chosen ring"))
    if flags:
        entries.append((look.idle, "NVLink that NCCL does not use"))
    x, parts = 24.0, []
    for colour, words in entries:
        length = 46 + 6.6 * len(words)
        if x > 24 and x + length > look.width:
            x, y = 24.0, y + _LINE
        parts.append(_line((x, y - 4), (x + 22, y - 4), colour, 4, words))
        parts.append(_text(x + 28, y, words, size=12, fill=look.ink))
        x += length
    return parts, y + 22


def _panels(topology: Topology, top: float, look: Look) -> tuple[list[str], float]:
    """A box for each NUMA node: its CPUs, memory, GPUs and NICs."""
    parts: list[str] = []
    boxes = [(_colour(node.id, topology), _node_lines(node, topology)) for node in topology.numa]
    rest = [nic for nic in topology.nics if nic.node not in {node.id for node in topology.numa}]
    if rest:
        lines = ["NUMA node unknown", *(_nic_line(nic.label, nic.name, nic.gbit_per_s) for nic in rest)]
        boxes.append(("#777777", lines))
    y = top
    for first in range(0, len(boxes), look.columns):
        row = boxes[first : first + look.columns]
        height = max(len(lines) for _, lines in row) * _LINE + 16
        for column, (colour, lines) in enumerate(row):
            x = 16 + column * (look.panel + 8)
            parts.append(
                f'<rect x="{x}" y="{y:.1f}" width="{look.panel}" height="{height}" rx="6" fill="{colour}" '
                f'fill-opacity="{look.tint}" stroke="{colour}"/>'
            )
            for number, line in enumerate(lines):
                parts.append(_text(x + 12, y + 21 + number * _LINE, line, size=12, bold=number == 0, fill=look.ink))
        y += height + 8
    return parts, y - top


def _node_lines(node: NumaNode, topology: Topology) -> list[str]:
    lines = [f"NUMA node {node.id}"]
    if node.cpus:
        lines.append(f"CPUs {_cut(node.cpus, 34)} ({len(parse_list(node.cpus))})")
    if node.memory:
        lines.append(f"{node.memory / 2**30:,.0f} GiB")
    gpus = [f"GPU{gpu.index}" for gpu in topology.devices if gpu.node == node.id]
    lines += [" ".join(gpus)] if gpus else []
    return lines + [_nic_line(nic.label, nic.name, nic.gbit_per_s) for nic in topology.nics if nic.node == node.id]


def _nic_line(label: str, name: str, speed: float | None) -> str:
    return f"{label}{f' {name}' if name != label else ''}{f', {speed:g} Gbit/s' if speed else ''}"


def _colour(node: int | None, topology: Topology) -> str:
    known = sorted({each.id for each in topology.numa} | {gpu.node for gpu in topology.devices if gpu.node is not None})
    return "#555555" if node is None else _NODES[known.index(node) % len(_NODES)]


def _line(
    a: tuple[float, float], b: tuple[float, float], colour: str, width: float, title: str, *, dashes: bool = False
) -> str:
    dashed = ' stroke-dasharray="7 5"' if dashes else ""
    return (
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{colour}" '
        f'stroke-width="{width:.1f}"{dashed}><title>{escape(title)}</title></line>'
    )


def _text(
    x: float, y: float, words: str, *, size: int, anchor: str = "start", fill: str = "#222222", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>'
        f"{escape(words)}</text>"
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
