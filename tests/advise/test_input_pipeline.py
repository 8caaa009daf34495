"""Input that comes from a pipeline of `paceline.data`: the rule names the stage that steps wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from made import evidence, figures, step

from paceline.advise.rules import input_bound
from paceline.record.facts import Facts, LoaderFacts
from paceline.record.pipelines import (
    PipelineReport,
    Reported,
    StageReport,
    most_waited_for,
    pipelines_path,
    read_pipelines,
)

WAITING = [[step(k, 0.1, data=0.04) for k in range(1, 40)]]  # 1.56 s in all
LOADER = Facts(threads=1, loaders=[LoaderFacts(dataset="Pictures")])


def stage(name: str, **changes: Any) -> StageReport:
    told = {"where": "here", "parallel": 1, "results": 40, "seconds": 0.04, "busy": 0.9, "capacity": 25.0}
    return StageReport(name=name, **{**told, **changes})


def reported(*stages: StageReport, slowest: str, number: int = 0, **changes: Any) -> Reported:
    told = {"results": 40, "waited": 0.4, "seconds": 4.0, "lost": 0, "bottleneck": slowest}
    report = PipelineReport(stages=list(stages), slowest=slowest, **{**told, **changes})
    return Reported(pipeline=number, title="files", step=40, at=1.0, report=report)


def found(folder: Path, *lines: Reported, steps: Any = WAITING, facts: Facts | None = None) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    pipelines_path(folder, 0).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return input_bound.find(evidence(folder, steps=steps, facts=facts))


def test_the_stage_that_steps_wait_for_is_named(tmp_path):
    told = found(tmp_path, reported(stage("records", capacity=900.0), stage("map decode"), slowest="map decode"))
    assert figures(told)["the pipeline's bottleneck"] == "map decode"
    assert figures(told)["maximum throughput of that stage"] == 25.0
    # All of it is done where it is asked for: 40 ms of making go on beside 60 ms of computing.
    assert "map decode" in told.advice
    assert ".prefetch()" in told.advice
    assert told.predicted_gain == pytest.approx(100 / 60, rel=0.01)


@pytest.mark.parametrize(
    ("slowest", "advice"),
    [
        (stage("map decode · batch 32", where="threads", parallel=2), ".cache()"),
        (stage("records", where="threads", parallel=4), "parallel=N"),
        (stage("map fetch", where="threads", parallel=2, busy=0.1), "waits more than it computes"),
    ],
)
def test_what_helps_is_said_of_the_stage(tmp_path, slowest, advice):
    told = found(tmp_path, reported(slowest, stage("prefetch", where="thread"), slowest=slowest.name))
    assert slowest.name in told.advice
    assert advice in told.advice
    assert told.predicted_gain is None
    assert figures(told)["where that stage runs"] == f"{slowest.parallel} threads"


def test_no_stage_is_named_where_the_script_does_not_wait_for_a_pipeline(tmp_path):
    busy = [[step(k, 0.1, data=0.001) for k in range(1, 40)]]
    assert found(tmp_path / "fast", reported(stage("map"), slowest="map"), steps=busy) is None
    for number, lines in enumerate(([], [reported(stage("map"), slowest="")])):
        told = found(tmp_path / str(number), *lines, facts=LOADER)
        assert "the pipeline's bottleneck" not in figures(told)
        assert told.mod.startswith("loader=")


def test_a_small_pipeline_beside_a_dataloader_is_not_what_steps_wait_for(tmp_path):
    told = found(tmp_path, reported(stage("map"), slowest="map", seconds=1.0), facts=LOADER)
    assert "the pipeline's bottleneck" not in figures(told)
    assert told.mod.startswith("loader=")


def test_the_last_line_of_each_pipeline_counts_and_a_torn_one_does_not(tmp_path):
    lines = [
        reported(stage("a"), slowest="a", number=0),
        reported(stage("b"), slowest="b", number=1, seconds=100.0),
        reported(stage("a"), slowest="a", number=0, results=80),
    ]
    whole = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    pipelines_path(tmp_path, 0).write_bytes(whole + msgspec.json.encode(lines[0])[:50])
    kept = read_pipelines(tmp_path, 0)
    assert [(one.pipeline, one.report.results) for one in kept] == [(0, 80), (1, 40)]
    waited = most_waited_for(kept)
    assert waited is not None
    assert waited.report.slowest == "b"
    assert read_pipelines(tmp_path, 1) == []
    assert most_waited_for([]) is None
    assert most_waited_for([reported(stage("a"), slowest="", waited=0.0)]) is None
