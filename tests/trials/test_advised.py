"""tune begins with what the profiler found."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.advise.finding import Finding, write_findings
from paceline.record import prepare, write_run
from paceline.record.schema import Run
from paceline.trials.tune.candidates import candidates
from paceline.trials.tune.from_findings import advised, put_first

ON_GPU = candidates(gpus=1, cores=8, workers=1, threads=8)


def profiled(records: Path, name: str, script: Path, mods: dict[str, float], *, at: float) -> Path:
    folder = records / name
    prepare(folder)
    write_run(folder, Run(paceline="0", verb="profile", script=str(script), arguments=[], settings={"module": False}))
    findings = [
        Finding(rule=mod, title="", evidence=[], advice="", mod=mod, predicted_gain=gain) for mod, gain in mods.items()
    ]
    write_findings(folder, findings)
    os.utime(folder / "findings.json", (at, at))
    return folder


def test_the_newest_findings_of_this_script_count(tmp_path: Path) -> None:
    ours, other = tmp_path / "train.py", tmp_path / "other.py"
    profiled(tmp_path, "old", ours, {"tf32": 1.2}, at=1)
    newest = profiled(tmp_path, "new", ours, {"resident": 1.3, "precision=bf16": 2.0}, at=2)
    profiled(tmp_path, "another", other, {"compile": 9.0}, at=3)
    assert advised(str(ours), module=False, records=tmp_path) == (["precision=bf16", "resident"], newest)
    assert advised(str(tmp_path / "new.py"), module=False, records=tmp_path) == ([], None)


def test_a_record_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "findings.json").write_text("[]")
    assert advised("train.py", module=False, records=tmp_path) == ([], None)


def test_what_was_found_comes_first_and_nothing_is_lost() -> None:
    tried = put_first(ON_GPU, ["loader=6", "precision=bf16", "accumulate=2", "batch=x4"])
    assert [candidate.mod for candidate in tried][:2] == ["loader=6", "precision=bf16"]
    assert {c.mod for c in tried} == {c.mod for c in ON_GPU} | {"loader=6"}
    orders = [candidate.order for candidate in tried]
    assert sorted(orders)[:2] == orders[:2], "they are the first to be tried"


def test_a_batch_is_tried_only_where_it_is_allowed() -> None:
    allowed = candidates(gpus=1, cores=8, workers=1, threads=8, allow=["batch"])
    assert put_first(allowed, ["batch=x2"])[0].mod == "batch=x2"
    assert "batch=x2" not in {candidate.mod for candidate in put_first(ON_GPU, ["batch=x2"])}
