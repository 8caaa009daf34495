"""The stages before a prefetch in a process of their own: the same results, in the same order, whenever it is begun."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline.data as pd
from paceline.data.error_policy import LostSamples
from paceline.data.execution import autotune, engines, prefetch, prefetch_process
from paceline.data.planning.nodes import Context
from paceline.errors import DataError

ROWS = 60
HERE = os.getpid()
QUICK = {"SETTLE": 0.0, "TIME": 0.0, "WINDOW": 2, "BUSY": -1.0, "WAITS": 2.0}  # settings of the prefetch tuner


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ROWS records (an array and its number) in three files."""
    folder = tmp_path_factory.mktemp("apart") / "packed"
    pd.pack([(np.full((2, 3), number, np.float32), number) for number in range(ROWS)], folder, shards=3)
    return f"{folder}/*.tfrecord"


def pipeline(shards: str, size: int = 4, **told: Any) -> pd.Pipeline:
    return pd.files(shards).records().shuffle(16, seed=1).map_and_batch(pd.decode_sample, size, **told).prefetch(2)


@pytest.fixture
def epochs(shards: str) -> list[list[list[int]]]:
    """What three epochs give, without any of this."""
    made = pipeline(shards)
    return [numbers(made) for _ in range(3)]


@pytest.fixture
def switches(epochs: Any, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Every stage changes over after so many of its results, over all loops; never, if it stays empty."""
    after: set[int] = set()
    change_over(after, monkeypatch)
    return after


def change_over(after: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: WeakKeyDictionary[autotune.PrefetchTuner, int] = WeakKeyDictionary()

    def look(self: autotune.PrefetchTuner, now: float) -> bool:
        seen[self] = seen.get(self, 0) + 1
        if seen[self] not in after or self._stages is None:
            return False
        self.in_process = not self.in_process
        return True

    monkeypatch.setattr(autotune.PrefetchTuner, "look", look)


def numbers(batches: Any) -> list[list[int]]:
    """Of the samples of each batch; and they are what they say."""
    found = []
    for rows, label in batches:
        assert torch.equal(rows, label.float()[:, None, None].expand(-1, 2, 3))
        found.append(label.tolist())
    return found


def samples(batches: Any) -> list[int]:
    return sorted(itertools.chain.from_iterable(numbers(batches)))


def where(made: pd.Pipeline) -> str:
    return made.report().stages[-1].where


def test_it_is_the_same_from_a_process_in_this_epoch_and_the_next(
    shards: str, epochs: list[list[list[int]]], switches: set[int]
) -> None:
    switches.add(3)
    made = pipeline(shards)
    assert [numbers(made), numbers(made)] == epochs[:2]
    assert where(made) == "process"
    made.close()
    assert numbers(made) == epochs[2]  # by a new one


@settings(max_examples=settings.default.max_examples // 2)  # each starts several processes
@given(after=st.integers(1, 28), size=st.integers(1, 9), stop=st.integers(0, 12))
def test_nothing_is_lost_whenever_it_is_begun_and_wherever_it_is_left(
    shards: str, after: int, size: int, stop: int
) -> None:
    expected = pipeline(shards, size)
    two = [numbers(expected), numbers(expected)]
    with pytest.MonkeyPatch.context() as patch:
        change_over({after}, patch)
        made, other = pipeline(shards, size), pipeline(shards, size)
        run = iter(made)
        first = numbers(itertools.islice(run, stop))
        other.restore(made.state())
        assert first + numbers(run) == two[0]
        # A loop that was told of its end has ended: what is saved then goes on with the next epoch.
        assert numbers(other) == (two[0][stop:] if stop <= len(two[0]) else two[1])
        assert numbers(made) == two[1]
        made.close()
        other.close()


def test_it_comes_back_where_a_process_is_no_better(shards: str, epochs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setattr(autotune, f"PREFETCH_{name}", value)
    for better, kind in ((float("inf"), "thread"), (0.0, "process")):
        monkeypatch.setattr(autotune, "PREFETCH_BETTER", better)
        made = pipeline(shards)
        assert numbers(made) == epochs[0]
        assert where(made) == kind
        assert any("with a process" in note for note in made.report().stages[-1].notes)
        made.close()


def test_what_waits_for_the_pipeline_is_not_kept_from_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = prefetch.Meter("prefetch")
    monkeypatch.setattr(autotune, "PREFETCH_WINDOW", 1)
    for wait, cpu, wanted in ((0.9, 1.0, False), (0.0, 0.0, False), (0.1, 0.5, True)):
        tuner = autotune.PrefetchTuner(meter, prefetch.PrefetchProcess(lambda: None, [meter], LostSamples()))  # type: ignore[arg-type, return-value]
        changed = False
        for second in range(4):
            meter.wait, meter.cpu = wait * second, cpu * second
            changed = tuner.look(float(second)) or changed
        assert changed == wanted


def test_what_the_consumer_keeps_stays_what_it_was(shards: str, epochs: Any, switches: set[int]) -> None:
    switches.add(1)
    made = pipeline(shards)
    kept = list(made)
    again = list(made)
    made.close()
    assert [numbers(kept), numbers(again)] == epochs[:2]


def test_an_error_there_is_told_here(shards: str, epochs: Any, switches: set[int]) -> None:
    def decode(raw: bytes) -> Any:
        sample = pd.decode_sample(raw)
        if sample[1] == epochs[0][9][0]:
            raise ValueError("not today")
        return sample

    switches.add(2)
    made = pd.files(shards).records().shuffle(16, seed=1).map_and_batch(decode, 4).prefetch(2)
    with pytest.raises(DataError, match=r"decode raised ValueError: not today, on record \d+ of .*tfrecord"):
        numbers(made)
    made.close()


def test_what_is_left_out_there_is_counted_here(shards: str, epochs: Any, switches: set[int]) -> None:
    late = {number for batch in epochs[0][8:12] for number in batch}

    def early(raw: bytes) -> Any:
        sample = pd.decode_sample(raw)
        if sample[1] in late:
            raise ValueError("late")
        return sample

    switches.add(2)
    made = pd.files(shards).records().shuffle(16, seed=1).map_and_batch(early, 4, on_error="skip").prefetch(2)
    assert samples(made) == sorted(set(range(ROWS)) - late)
    assert made.lost == len(late)
    assert next(stage.results for stage in made.report().stages if stage.name.startswith("map")) >= ROWS // 4
    made.close()


def test_where_something_was_left_out_already_it_stays_here(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies ready is made again after a change: it would be counted twice."""
    for name, value in (QUICK | {"BETTER": 0.0}).items():
        monkeypatch.setattr(autotune, f"PREFETCH_{name}", value)

    def odd(raw: bytes) -> Any:
        sample = pd.decode_sample(raw)
        if sample[1] % 2 == 0:
            raise ValueError("even")
        return sample

    made = pd.files(shards).records().map_and_batch(odd, 4, on_error="skip").prefetch(2)
    assert samples(made) == list(range(1, ROWS, 2))
    assert (made.lost, where(made)) == (ROWS // 2, "thread")


def test_what_cannot_be_done_in_a_process_is_done_here(shards: str, epochs: Any, switches: set[int]) -> None:
    home = os.getpid()

    def decode(raw: bytes) -> Any:
        if os.getpid() != home:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return pd.decode_sample(raw)

    switches.add(3)
    made = pd.files(shards).records().shuffle(16, seed=1).map_and_batch(decode, 4).prefetch(2)
    assert [numbers(made), numbers(made)] == epochs[:2]
    assert where(made) == "thread"
    made.close()


def test_a_process_that_is_killed_is_told(shards: str, epochs: Any, switches: set[int]) -> None:
    def decode(raw: bytes) -> Any:
        sample = pd.decode_sample(raw)
        if os.getpid() != home and sample[1] == epochs[0][12][0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    home = os.getpid()
    switches.add(1)
    made = pd.files(shards).records().shuffle(16, seed=1).map_and_batch(decode, 4, kind="threads").prefetch(2)
    with pytest.raises(DataError, match="ended by signal SIGKILL"):
        numbers(made)
    made.close()


@pytest.mark.parametrize(
    "stages",
    [
        lambda made: made.cache(),
        lambda made: made.map(lambda sample: sample, kind="here"),
        lambda made: made.prefetch(),
        lambda made: made.to("cpu"),
        lambda made: made.zip(pd.items(range(9))),
    ],
)
def test_what_has_to_be_here_stays_here(shards: str, stages: Any) -> None:
    made = stages(pd.files(shards).records()).prefetch()
    assert made._plan().nodes[-1].process is None
    assert pd.stream(lambda: range(3)).prefetch()._plan().nodes[-1].process is None
    assert pd.files(shards).records().prefetch()._plan().nodes[-1].process is not None


def test_nothing_is_left_behind(shards: str, tmp_path: Path) -> None:
    script = tmp_path / "left.py"
    script.write_text(
        "import os, sys, paceline.data as pd\n"
        "from paceline.data.execution import prefetch\n"
        "def look(self, now): self.in_process, was = True, self.in_process; return not was\n"
        "prefetch.PrefetchTuner.look = look\n"
        "made = pd.files(sys.argv[1]).records().repeat().map_and_batch(pd.decode_sample, 4).prefetch(2)\n"
        "for number, batch in enumerate(made):\n"
        "    if number == 5:\n"
        "        print(made._runtime.prefetch_processes[0]._pid, flush=True)\n"
        "        os._exit(0)\n"
    )
    # Reads the standard output, which the process has, too, to its end: it ends when the last of them does.
    done = subprocess.run([sys.executable, script, shards], capture_output=True, text=True, check=True, timeout=100)
    deadline = time.monotonic() + 60
    while is_running(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.01)  # it has closed its files, and ends just now
    assert not is_running(int(done.stdout))


@pytest.mark.parametrize("told", [{}, {"kind": "processes", "parallel": 2}], ids=["prefetch", "processes"])
def test_a_pipeline_that_nobody_holds_ends_its_processes_without_the_garbage_collector(
    shards: str, switches: set[int], told: dict[str, Any]
) -> None:
    switches.update(() if told else (3,))
    made, others = pipeline(shards, **told), children()
    for _ in itertools.islice(made, 5):
        pass
    begun = children() - others
    assert begun
    gc.disable()
    try:
        del made
        deadline = time.monotonic() + 60
        while any(map(is_running, begun)) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert not any(map(is_running, begun))


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Garbage:
    """Something that only its own process may let go of, as what lies on a GPU."""

    def __init__(self, file: Path) -> None:
        self.file, self.itself = file, self

    def __del__(self) -> None:
        with open(self.file, "a") as file:
            file.write(f"{os.getpid()}\n")


def collects(raw: bytes) -> Any:
    if os.getpid() != HERE:
        gc.collect()
    return pd.decode_sample(raw)


@pytest.mark.parametrize("kind", ["prefetch", "processes"])
def test_what_was_garbage_before_it_is_forked_is_not_let_go_of_there(
    kind: str, shards: str, tmp_path: Path, switches: set[int]
) -> None:
    told: Any = {"kind": "processes", "parallel": 1} if kind == "processes" else {}
    stream = pd.files(shards).records().map_and_batch(collects, 4, **told).prefetch(2)
    switches.update({1} if kind == "prefetch" else ())
    gc.collect()
    gc.disable()
    try:
        Garbage(tmp_path / "let go")
        assert samples(stream) == list(range(ROWS))
        gc.collect()
    finally:
        gc.enable()
    assert (tmp_path / "let go").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(("slots", "pooled"), [(1, False), (64, True)])
def test_one_thread_is_enough_there_until_the_script_waits(
    slots: int, pooled: bool, shards: str, switches: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by whether there is room for what comes next: there never is with one slot, and always with many."""
    monkeypatch.setattr(engines, "SHORT", 0.0)
    monkeypatch.setattr(prefetch_process, "SLOTS", slots)
    switches.add(1)
    stream = pd.files(shards).records().repeat(4).map_and_batch(pd.decode_sample, 4).prefetch(2)
    assert len(numbers(stream)) == 4 * ROWS // 4
    meter = next(meter for meter in stream._runtime.meters if "decode" in meter.name)
    assert (meter.parallel > 0) == pooled


def test_it_ends_also_where_the_garbage_collector_closed_its_pipe_first(shards: str, switches: set[int]) -> None:
    switches.add(1)
    stream = pipeline(shards)
    loop = iter(stream)
    next(loop)
    next(loop)
    (home,) = stream._runtime.prefetch_processes
    assert home._pipe is not None
    home._pipe.__del__()
    stream.close()
    assert samples(stream) == list(range(ROWS))


def test_a_workers_own_rows_come_from_there_too(shards: str, switches: set[int]) -> None:
    expected = [rows_of(shards, rank) for rank in range(2)]
    switches.add(2)
    assert [rows_of(shards, rank) for rank in range(2)] == expected


def rows_of(shards: str, rank: int) -> list[tuple[int, list[int]]]:
    """What worker `rank` of two that run as one makes of each batch: its size, and the numbers of the rows."""
    made = pipeline(shards)
    cursor = made._plan().open(Context(parted=True, place=(rank, 2)), None)
    found = []
    while got := cursor.take(1):
        found.append((got[0].size, got[0].value[1].tolist()))
    cursor.close()
    made.close()
    return found
