"""Draws a bandwidth verdict: collectives by size as curves, pairs as heat maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.trials.bandwidth_verdict import CollectiveRate, PairRate, Verdict

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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg")
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
        axes.set_yscale("log")
        axes.set_xlabel("bytes")
        axes.set_ylabel("busbw, GB/s")
        axes.set_title(op, fontsize=11)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, frameon=False)
    figure.suptitle(f"{verdict.workers} workers (medians; bars: slowest and fastest round)", fontsize=11)
    return figure


def _heat_maps(pairs: list[PairRate]) -> Any:
    kinds: dict[tuple[str, str], list[PairRate]] = {}
    for pair in pairs:
        kinds.setdefault((pair.between, pair.backend), []).append(pair)
    figure, panels = _panels(len(kinds), width=4.2, height=3.8)
    for axes, ((between, backend), found) in zip(panels, kinds.items(), strict=True):
        names = sorted({end for pair in found for end in (pair.a, pair.b)})
        cells = [[float("nan")] * len(names) for _ in names]
        for pair in found:
            a, b = names.index(pair.a), names.index(pair.b)
            cells[a][b] = pair.gb_per_s
            if between == "workers":  # measured once for both
                cells[b][a] = pair.gb_per_s
        image = axes.imshow(cells, cmap="viridis", vmin=0)
        largest = max(pair.gb_per_s for pair in found)
        for row, line in enumerate(cells):
            for column, value in enumerate(line):
                if value == value:
                    colour = "black" if value > largest / 2 else "white"
                    axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=8, color=colour)
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("to")
        axes.set_ylabel("from")
        axes.set_title(f"{'GPUs' if between == 'gpus' else between}: {backend}, GB/s one way", fontsize=10)
        figure.colorbar(image, ax=axes, shrink=0.8)
    return figure
