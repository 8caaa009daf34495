"""Draws a bandwidth verdict: collectives by size as curves, pairs as heat maps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from paceline.record.private import make_folder, opened
from paceline.trials.bandwidth.verdict import CollectiveRate, Matrix, PairRate, Verdict, matrices
from paceline.units import size

_COLUMNS = 3


def draw(verdict: Verdict, folder: Path) -> list[Path]:
    """Writes the SVGs that there is something to draw for, and returns them. ImportError where matplotlib is not
    there: it is imported only here, as it takes longer than all the rest of this process."""
    drawn = []
    if verdict.collectives:
        drawn.append(_save(_curves(verdict), folder / "collectives.svg"))
    if verdict.pairs:
        drawn.append(_save(_heat_maps(verdict.pairs), folder / "pairs.svg"))
    return drawn


def _save(figure: Any, path: Path) -> Path:
    make_folder(path.parent)
    with opened(path) as file:
        figure.savefig(file, format="svg")
    return path


def _panels(count: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    every = list(panels)
    for empty in every[count:]:
        empty.set_visible(False)
    return figure, every[:count]


def _curves(verdict: Verdict) -> Any:
    by_op: dict[str, dict[str, list[CollectiveRate]]] = {}
    for each in verdict.collectives:
        name = each.backend if each.algorithm in ("copied", "its own") else f"{each.backend}, {each.algorithm}"
        by_op.setdefault(each.op, {}).setdefault(name, []).append(each)
    figure, panels = _panels(len(by_op), width=4.4, height=3.4)
    for axes, (op, ways) in zip(panels, by_op.items(), strict=True):
        for name, points in ways.items():
            points = sorted(points, key=lambda point: point.bytes)
            # A slow round is a low rate.
            spread = [
                [p.busbw * (1 - p.seconds / p.high) for p in points],
                [p.busbw * (p.seconds / p.low - 1) for p in points],
            ]
            axes.errorbar(
                [p.bytes for p in points],
                [p.busbw for p in points],
                yerr=spread,
                marker="o",
                ms=3,
                capsize=2,
                label=name,
            )
        axes.set_xscale("log", base=2)
        sizes = sorted({point.bytes for points in ways.values() for point in points})[::2]
        axes.set_xticks(sizes, [size(each) for each in sizes], fontsize=8)
        axes.set_yscale("log")
        for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis(lambda value, _: f"{value:g}")
        axes.set_xlabel("size")
        axes.set_ylabel("busbw, GB/s")
        axes.set_title(op, fontsize=11)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, frameon=False)
    figure.suptitle(f"{verdict.workers} workers (medians; bars: slowest and fastest round)", fontsize=11)
    return figure


def _heat_maps(pairs: list[PairRate]) -> Any:
    """A row for each way of sending: one way, both ways, latency."""
    ways: dict[tuple[str, str], list[PairRate]] = {}
    for pair in pairs:
        ways.setdefault((pair.between, pair.backend), []).append(pair)
    figure, panels = _panels(_COLUMNS * len(ways), width=4.2, height=3.8)
    for row, ((between, backend), found) in enumerate(ways.items()):
        names, one_way, both_ways, latency = matrices(found)
        title = f"{'GPUs' if between == 'gpus' else between}: {backend}"
        maps = (
            (one_way, f"{title}, GB/s one way", "viridis"),
            (both_ways, f"{title}, GB/s both ways", "viridis"),
            ([[cell * 1e6 for cell in line] for line in latency], f"{title}, latency in µs", "viridis_r"),
        )
        for axes, (cells, name, colours) in zip(panels[_COLUMNS * row :], maps, strict=False):
            _heat_map(figure, axes, names, cells, name, colours)
    return figure


def _heat_map(figure: Any, axes: Any, names: list[int], cells: Matrix, title: str, colours: str) -> None:
    largest = max(cell for line in cells for cell in line if not math.isnan(cell))
    image = axes.imshow(cells, cmap=colours, vmin=0, vmax=largest)
    for row, line in enumerate(cells):
        for column, value in enumerate(line):
            if not math.isnan(value):
                light = sum(image.cmap(image.norm(value))[:3]) > 1.5
                colour = "black" if light else "white"
                digits = 0 if value >= 100 else 1 if value >= 10 else 2
                text = f"{value:,.{digits}f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)
