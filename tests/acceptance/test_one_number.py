"""One number, one place: a real run and a real profile show the same figures in every place that shows them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from paceline.advise.evidence import Evidence
from paceline.cli.live import LiveLine
from paceline.record import last_step
from paceline.tables.figures import Figures, kept_figures, read_figures
from paceline.units import percent, rate, seconds
from paceline.view.pages import compare, dashboard, iterations, runs
from paceline.view.records.library import Library
from paceline.view.server.follow import Follower
from paceline.view.ui.blocks import Page, Tiles
from paceline.view.ui.grid import Grid
from paceline.view.ui.traced import head

# Evaluation every few steps, by a loop that also loads and computes outside the model; a smaller last batch.
TRAIN = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(150, 8)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(8):
    model.train()
    for x, y in DataLoader(data, batch_size=20, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=50):
            model(x)
            time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory, typist) -> dict[str, tuple[Path, dict, str]]:
    """One run and one profile: record, JSON document, and what a person sees."""
    folder = tmp_path_factory.mktemp("one_number")
    (folder / "train.py").write_text(TRAIN)
    found = {}
    for verb, more in (("run", ()), ("profile", ("--steps", "3"))):
        ended = typist.type(folder, verb, "-n", "2", "--json", *more, "train.py")
        assert ended.returncode == 0, ended.stderr
        told = json.loads(ended.stdout)
        found[verb] = (folder / told["record"], told, ended.stderr)
    return found


@pytest.fixture(params=["run", "profile"])
def one(request, made) -> tuple[Path, dict, str]:
    return made[request.param]


@pytest.fixture
def figures(one) -> Figures:
    found = read_figures(one[0])
    assert found.counted >= 3
    return found


def tiles(page: Page | list) -> dict[str, str]:
    blocks = page.blocks if isinstance(page, Page) else page
    shown = [tile for block in blocks if isinstance(block, Tiles) for tile in block.tiles]
    return {tile.label: f"{tile.value} {tile.detail}".strip() for tile in shown}


def test_json_has_the_figures(one, figures):
    told = one[1]
    assert told["step_time"] == figures.step_time == told["step"]["total"]
    assert told["samples_per_s"] == figures.samples_per_s
    assert told["spread"] == figures.spread == told["slowest"]["share"]
    assert (told["slowest"]["rank"], told["slowest"]["slow"]) == (figures.slowest.rank, figures.slowest.slow)


def test_the_summary_has_them(one, figures):
    summary = one[2]
    assert f"{seconds(figures.step_time)} a step" in summary
    assert f"{rate(figures.samples_per_s)} samples/s" in summary
    assert f"spread {percent(figures.spread)} of a step" in summary


def test_the_live_line_has_them_at_the_last_step(one, figures):
    folder = one[0]
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    live = LiveLine(console, workers=2, quiet=False, script_to_stderr=True, record=folder)
    live.progress({rank: last_step(folder, rank) for rank in (0, 1)})
    live.close()
    line = re.sub(r"\x1b\[[\d;?]*\w", "", console.file.getvalue())
    assert f"{rate(figures.samples_per_s)} samples/s · {seconds(figures.step_time)} a step" in line
    assert f"spread {percent(figures.spread)}" in line
    assert ("slowest: rank" in line) == figures.slowest.slow


def test_the_pages_have_them(one, figures):
    folder = one[0]
    library = Library(folder.parent)
    record = library.open(folder.name)
    board = tiles(dashboard.build(record, {}))
    assert board["samples/s"] == rate(figures.samples_per_s)
    assert board["step time"] == seconds(figures.step_time)
    assert f"spread {percent(figures.spread)} of a step" in board["slowest worker"]
    assert (board["slowest worker"].startswith("none")) != figures.slowest.slow
    assert tiles(iterations.build(record, {}))["step time"] == seconds(figures.step_time)
    [grid] = [block for block in runs.build(library).blocks if isinstance(block, Grid)]
    [row] = [row for row in grid.rows if row["name"] == folder.name]
    assert row["samples_per_s"] == figures.samples_per_s
    for run in compare.build([record, record]).grid("compared").rows:
        assert (run["samples_per_s"], run["step_time"]) == (figures.samples_per_s, figures.step_time)
    if record.trace_paths:
        assert tiles(head(record))["step time"] == seconds(figures.step_time)
    live = Follower(library, folder.name).look()["figures"]
    slowest = figures.slowest.rank if figures.slowest.slow else None
    speed, took = rate(figures.samples_per_s), seconds(figures.step_time)
    assert live == {"samples_per_s": speed, "step_time": took, "slowest": slowest}


@pytest.fixture(scope="module")
def listed(made, typist) -> tuple[list[dict], list[str]]:
    """The list of runs: as JSON, and the lines that a person sees."""
    folder = made["run"][0].parents[1]
    document = json.loads(typist.type(folder, "runs", "--json").stdout)
    return document["runs"], typist.type(folder, "runs").stdout.splitlines()


def test_the_list_of_runs_has_them(one, figures, listed):
    [run] = [run for run in listed[0] if Path(run["record"]).name == one[0].name]
    assert (run["samples_per_s"], run["step_time"], run["spread"]) == (
        figures.samples_per_s,
        figures.step_time,
        figures.spread,
    )
    line = next(line for line in listed[1] if line.startswith(one[0].name))
    assert f" {rate(figures.samples_per_s)} " in line
    assert f" {seconds(figures.step_time)} " in line


def test_the_rules_reason_with_them(one, figures):
    evidence = Evidence.of_record(one[0])
    assert evidence.step == figures.step_time
    assert sum(evidence.parts.values()) == pytest.approx(figures.step_time)
    slowest = evidence.stragglers.row(0, named=True)
    assert (slowest["rank"], slowest["behind"]) == (figures.slowest.rank, figures.slowest.behind)


def test_they_are_kept_in_the_record_and_are_those_of_the_steps(one, figures):
    kept = kept_figures(one[0])
    assert kept == figures
    (one[0] / "figures.json").unlink()
    assert read_figures(one[0]) == figures


def test_neither_evaluation_nor_the_profiler_is_part_of_a_step(made):
    run, profile = (read_figures(made[verb][0]) for verb in ("run", "profile"))
    assert run.step["evaluation"] > 0
    assert run.step_time == pytest.approx(sum(run.step.values()) - run.step["total"] - run.step["evaluation"])
    assert profile.counted < profile.steps - profile.warm_up  # the traced steps do not count
