"""Traces that are read by several processes are the traces that one reads."""

from __future__ import annotations

import gzip
import time

import pytest
from cuda_trace import Machine

from paceline.errors import TraceError
from paceline.tables.memory import memory
from paceline.tables.ops import ops
from paceline.tables.records import read_files
from paceline.tables.timeline import timeline
from paceline.tables.trace import parallel
from paceline.tables.trace.columns import arrange, read_trace
from paceline.tables.trace.parallel import read_together


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "WORTH_IT", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    found = []
    for rank in (2, 0, 1):
        machine = Machine(rank, 3)
        for _ in range(3):
            with machine.step(), machine.op("aten::mm", **{"Input Dims": [[2, 3], [3, 4 + rank]]}):
                machine.launch("sgemm", 10_000)
                machine.memory(100, 1, 200, 300)
        found.append(machine.write(tmp_path / f"rank{rank}.json.gz"))
    return found


@pytest.fixture
def nothing_here(monkeypatch):
    """Children read everything: else this process would be done before they are ready."""

    def wait(waiting):
        while waiting:
            time.sleep(0.01)
        return {}

    monkeypatch.setattr(parallel, "_read_here", wait)


@pytest.mark.usefixtures("nothing_here")
def test_nothing_is_lost_on_the_way(paths):
    one_by_one = arrange([read_trace(path) for path in paths])
    for theirs, ours in zip(read_together(paths), one_by_one, strict=True):
        assert (theirs.rank, theirs.world, theirs.base, theirs.path) == (ours.rank, ours.world, ours.base, ours.path)
        assert theirs.head == ours.head
        assert theirs.events.equals(ours.events)
        assert theirs.events.schema == ours.events.schema
        for table in (ops, timeline, memory):
            assert table(theirs).equals(table(ours))


def test_whoever_is_free_takes_the_next(paths):
    """Here nobody is faster than this process."""
    assert [trace.rank for trace in read_together(paths)] == [0, 1, 2]


@pytest.mark.parametrize("by_a_child", [True, False])
@pytest.mark.parametrize("which", [0, 2])
def test_a_damaged_one_is_told_as_ever(paths, which, by_a_child, request):
    if by_a_child:
        request.getfixturevalue("nothing_here")
    paths[which].write_bytes(gzip.compress(b'{"traceEvents": [{"name": '))
    with pytest.raises(TraceError, match="was cut short") as caught:
        read_together(paths)
    assert str(paths[which]) in caught.value.message
    assert "torch.profiler" in caught.value.advice


def test_tables_of_several_ranks_go_together(paths):
    table = read_files(paths).over_ranks(lambda trace: ops(trace, by="shapes"))
    assert table.filter(name="aten::mm").height == 3
    assert table.filter(name="aten::mm")["shapes"].n_unique() == 3


def test_a_child_that_cannot_start_is_no_loss(paths, monkeypatch):
    monkeypatch.setattr(parallel.sys, "executable", "/bin/false")
    assert [trace.rank for trace in read_together(paths)] == [0, 1, 2]


@pytest.mark.usefixtures("nothing_here")
def test_a_child_that_dies_over_a_file_is_told(paths, monkeypatch, tmp_path):
    (tmp_path / "dies").write_text("#!/bin/sh\nprintf '!'\n")
    (tmp_path / "dies").chmod(0o755)
    monkeypatch.setattr(parallel.sys, "executable", str(tmp_path / "dies"))
    with pytest.raises(TraceError, match="has ended"):
        read_together(paths)
