"""What a plan reads from records, and how it checks itself on them."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from works import steps, write_record, write_series

from paceline.errors import RecordError
from paceline.plan.check import Check, check, error_of
from paceline.plan.cluster import Cluster
from paceline.plan.workload import read_workload
from paceline.record.logged import Logged


@pytest.fixture
def series(tmp_path):
    return write_series(tmp_path / "series")


def test_compute_by_rows_comes_from_all_runs_of_a_series(series):
    work = read_workload(series)
    assert [point.rows for point in work.points] == [16, 32, 64]
    for rows in (16, 24, 32, 64, 128):
        assert work.at(rows, lambda p: p.compute) == pytest.approx(0.02 + 0.005 * rows)
    assert (work.batch, work.threads, work.device) == (64, 1, "CPU")


def test_buckets_come_from_the_timeline(series):
    work = read_workload(series)
    assert work.gradients == 2_000_000
    assert [bucket[0] for bucket in work.ready] == [1_000_000, 1_000_000]
    assert [bucket[2] for bucket in work.ready] == pytest.approx([0.5, 1.0], abs=0.02)
    assert work.buckets(25 << 20) == [
        (1_000_000, pytest.approx(0.5, abs=0.02)),
        (1_000_000, pytest.approx(1, abs=0.02)),
    ]
    assert len(work.buckets(500_000)) == 4
    assert work.messages == pytest.approx(2)
    assert work.exchange == pytest.approx(0.002)


def test_a_run_alone_says_what_is_not_known(tmp_path):
    write_record(tmp_path / "run", [steps(0.1, samples=64)])
    work = read_workload(tmp_path / "run")
    told = "\n".join(work.unknown)
    for words in ("only one number of rows", "bytes of gradients", "the optimizer", "memory"):
        assert words in told
    assert work.at(32, lambda p: p.compute) == pytest.approx(0.05)


@pytest.mark.parametrize("count", [0, 1])
def test_a_record_without_steps_is_refused(tmp_path, count):
    write_record(tmp_path / "run", [steps(0.1, samples=64, count=count)])
    with pytest.raises(RecordError, match="no run with at least 3 steps") as refused:
        read_workload(tmp_path / "run")
    assert "paceline plan --measure" in refused.value.advice


def test_scatter_is_that_of_the_steps(tmp_path):
    told = steps(0.1, samples=64, count=20) + [
        msgspec.structs.replace(one, step=one.step + 20, total=0.2) for one in steps(0.1, samples=64, count=20)
    ]
    write_record(
        tmp_path / "run", [[msgspec.structs.replace(one, step=n + 1) for n, one in enumerate(told[::2] + told[1::2])]]
    )
    scatter = read_workload(tmp_path / "run").scatter
    assert scatter[-1] / scatter[0] == pytest.approx(2)


def test_samples_to_an_accuracy_are_counted_until_it_was_logged(tmp_path):
    write_record(tmp_path / "run", [steps(0.1, samples=64)])
    lines = [
        Logged(step=5, at=0, numbers={"test_accuracy": 0.6}),
        Logged(step=10, at=0, numbers={"test_accuracy": 0.75}),
    ]
    (tmp_path / "run" / "logged.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert read_workload(tmp_path / "run", accuracy=0.7).samples_seen == 640
    assert read_workload(tmp_path / "run", accuracy=0.9).samples_seen == 0


def test_the_check_predicts_a_run_from_the_others(series):
    extra = series / "trials" / "round2-workers2"
    shutil.copytree(series / "trials" / "workers2", extra)
    found = check([series], Cluster(slots=2))
    assert len(found.runs) == 2
    assert found.worst < 0.05  # 180 ms and 2 ms of exchanges, which the other run shows
    assert error_of(found) == 0.25  # two runs are too few to narrow the interval
    found.runs[0].predicted *= 2
    assert error_of(found) == pytest.approx(found.worst)
    assert error_of(Check(runs=[found.runs[1]] * 3, left_out={})) == 0.1


def test_the_check_never_uses_the_run_itself(series):
    told = [steps(1.0, samples=64) for _ in range(2)]  # now the two workers are far slower than the others say
    shutil.copytree(series / "trials" / "workers2", series / "trials" / "workers2-again")
    write_record(series / "trials" / "slow", told)
    slow = next(run for run in check([series], Cluster(slots=2)).runs if run.record.endswith("slow"))
    assert slow.predicted < 0.3
    assert slow.measured == pytest.approx(1.0)
