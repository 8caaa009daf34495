"""What is read out of a trial's record: which steps count, and what kind of failure it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from records import step, write_record

from paceline.record import Outcome
from paceline.settings import RunSettings
from paceline.trials.core.result import Measured, read_measured


def read(folder: Path, by_rank, *, cause: str = "", log: str = "", mods: tuple[str, ...] = ()) -> Measured:
    outcome = write_record(folder, by_rank, exit_code=int(bool(cause)))
    outcome.cause, outcome.failed_rank = cause, 0 if cause else None
    raised = re.match(r"raised (\w+)", cause)
    outcome.error = raised[1] if raised else ""
    (folder / "log.rank0.txt").write_text(log)
    return read_measured("one", RunSettings(script="train.py", workers=len(by_rank), mods=mods), folder, outcome)


def test_steps_with_an_evaluation_between_them_do_not_count(tmp_path):
    steps = [step(k) for k in range(1, 31)]
    for one in steps[4::5]:
        # The loader of the evaluation was waited for, too: the rest of such a step is no step, either.
        one.total, one.evaluation = 9.0, 5.0
    measured = read(tmp_path, [steps])
    assert measured.samples_per_s == pytest.approx(640)
    assert measured.high == pytest.approx(640)
    assert measured.step["total"] == pytest.approx(0.1)


def test_the_speed_is_the_median_block(tmp_path):
    steps = [step(k, own=0.98 if k < 2 or 30 <= k < 33 else 0.08) for k in range(40)]
    measured = read(tmp_path, [steps])
    assert measured.samples_per_s == pytest.approx(640)
    assert measured.low < 200
    assert (measured.steps, measured.warm_up) == (40, 2)


def test_a_smaller_last_batch_counts_for_what_it_is(tmp_path):
    steps = [step(k, samples=64 if k % 3 else 32) for k in range(60)]
    measured = read(tmp_path, [steps])
    assert measured.batch == 64
    assert measured.samples_per_s == pytest.approx(160 / 0.3)


def test_memory_is_of_the_worker_that_took_most(tmp_path):
    by_rank = [[step(k) for k in range(20)] for _ in range(3)]
    for rank, steps in enumerate(by_rank):
        for one in steps:
            one.memory = 100 * (rank + 1) + one.step
    assert read(tmp_path, by_rank).memory == 319


@pytest.mark.parametrize(
    ("cause", "log", "status"),
    [
        ("raised torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …", "", "memory"),
        ("raised RuntimeError: CUDA error: out of memory", "", "memory"),
        ("raised RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "", "memory"),
        (
            "raised RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
            "",
            "memory",
        ),
        ("raised MemoryError", "", "memory"),
        ("raised RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "", "memory"),
        ("was killed by SIGKILL (signal 9)", "", "memory"),
        ("was killed by SIGABRT (signal 6)", "terminate called after throwing 'std::bad_alloc'", "memory"),
        ("was killed by SIGABRT (signal 6)", "assertion failed", "failed"),
        ("was killed by SIGSEGV (signal 11)", "", "failed"),
        ("exited with code 3", "", "failed"),
        ("raised ValueError: x", "not out of memory, says the log", "failed"),
        ("raised NotSplitError: nothing was split", "", "failed"),
    ],
)
def test_kinds_of_failure(tmp_path, cause, log, status):
    measured = read(tmp_path, [[step(1)]], cause=cause, log=log)
    assert measured.status == status
    assert measured.message
    assert "\n" not in measured.message
    assert measured.samples_per_s == 0


def test_how_much_was_too_much_is_told(tmp_path):
    cause = "raised torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …"
    assert read(tmp_path, [[]], cause=cause).message == "out of memory: tried to allocate 2.00 GiB (worker 0)"


def test_a_refusal_is_the_mods_where_there_is_one(tmp_path):
    cause = "raised ScriptError: the dataset cannot be moved"
    assert read(tmp_path / "a", [[]], cause=cause).status == "failed"
    measured = read(tmp_path / "b", [[]], cause=cause, mods=("resident",))
    assert (measured.status, measured.message) == ("unsupported", "the dataset cannot be moved")


def test_an_interrupt_is_no_failure(tmp_path):
    write_record(tmp_path, [[step(1)]])
    outcome = Outcome(exit_code=130, seconds=1.0, interrupted=True, cause="Interrupted by SIGINT.")
    assert read_measured("one", RunSettings(script="x"), tmp_path, outcome).status == "interrupted"
