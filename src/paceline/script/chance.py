"""Chance: what would differ between workers by accident is made equal, where that does no harm.

    asked for by                                          from whom      here
    numpy generators without a seed, default_rng()        anybody        seeds of the run
    random.Random()                                       the script     seeds of the run
    os.urandom, secrets, SystemRandom, uuid1, uuid4 …     the script     bytes that the workers of this run share
    random.seed(x), torch.manual_seed(x), default_rng(x)  the script,    rank 0's x, while the script sets itself up;
      np.random.seed(x), random.Random(x)                 libraries      noted, and compared with the other workers'

The operating system's randomness goes on to reach whoever needs it to differ: names of temporary files, keys of
processes, ids that libraries make. Only a call from the script's own files is answered alike on every worker, and in
every run otherwise, whatever `--seed` says: a script may name its folders so.

Nothing here can hang. A worker waits for rank 0's seed for `PATIENCE` seconds at most, and rank 0 waits for nobody.
What a thread, a process of the script's own or a dataset seeds is left alone. Of C classes, seeds cannot be seen
(`RandomState(x)`, `Generator.manual_seed(x)`, `Generator.seed()`): where these differ, so do arguments or weights.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import secrets
import sys
import sysconfig
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing import current_process
from typing import Any

import numpy as np
import torch

from paceline.comm.call_site import script_line
from paceline.script.seams.state import StageState

PATIENCE = 10.0  # seconds that rank 0 may take to come to a line that this worker has come to
SHARED = 32  # seeds that are rank 0's: those of a script's beginning. Later ones may be many, and are compared only
ENTROPY = 32  # bytes
SEEDABLE = (int, float, str)
HERE = os.path.dirname(__file__)
# Files whose lines come between a question and who asked it.
BETWEEN = {
    *(m.__file__ for m in (random, secrets, uuid)),
    *(os.path.join(HERE, n) for n in ("rng.py", "chance.py")),
}
IDS = ("uuid1", "uuid4", "uuid6", "uuid7")

_source: Source | None = None  # of this process, where there are several workers
_shares = 0  # how often workers have met to share one: each time has keys of its own


class Stream(random.Random):
    """A generator of ours: its seed is nobody's business."""

    seed = random.Random.seed


class Source:
    """What the workers of a run share: bytes from the operating system, and the seeds that the script has set."""

    def __init__(self, stage: StageState) -> None:
        """Every worker makes one before the script begins; waits for rank 0's bytes."""
        self.stage, self.group = stage, stage.group
        entropy = torch.frombuffer(bytearray(os.urandom(ENTROPY)), dtype=torch.uint8)
        self.group.broadcast(entropy, "the run's random bytes")
        self._entropy = entropy.numpy().tobytes()
        self._store = self.group.store(f"seeds{_shares}")
        self._pid, self._streams = os.getpid(), dict[str, Stream]()
        self._asked = 0
        self.seeds: list[tuple[int, str]] = []  # noted, and not yet taken to be compared

    def stream(self) -> Stream:
        """For the script's own questions: equal on all workers, another one in each process that the script starts."""
        name = process_name()
        if name not in self._streams:
            self._streams[name] = Stream(self._entropy + name.encode())
        return self._streams[name]

    def agreed(self, value: Any) -> Any:
        """A seed that the script sets: what it is set to. Noted, to be compared."""
        if not self._is_in_order():
            return value
        if self._asked < SHARED and not self.stage.trained and isinstance(value, SEEDABLE):
            self._asked += 1
            value = self._of_rank_0(f"{self._asked}", value)
        if isinstance(value, (*SEEDABLE, bytes, list, tuple, np.integer, np.ndarray)):
            text = f"{value!r}"
            self.seeds.append((zlib.crc32(text.encode()), f"{text[:80]} at {script_line()}"))
        return value

    def _of_rank_0(self, key: str, value: Any) -> Any:
        if self.group.rank == 0:
            self._store.set(key, json.dumps(value))
            return value
        try:
            self._store.wait([key], datetime.timedelta(seconds=PATIENCE))
            found = json.loads(self._store.get(key))
        except (RuntimeError, ValueError):  # rank 0 went another way: found when the workers next compare
            return value
        return found if type(found) is type(value) else value

    def _is_in_order(self) -> bool:
        """Whether all workers come here in the same order: not in a thread or a process of the script's, not while a
        dataset loads what others do not, not inside a model's call on a slice."""
        stage = self.stage
        return (
            os.getpid() == self._pid
            and threading.current_thread() is threading.main_thread()
            and not (stage.aside or stage.depth or stage.backward_depth)
            and stage.watch.phase != "data"
        )


def share(stage: StageState) -> None:
    """Every worker of several calls it, before the script begins: `install` then makes its chances equal."""
    global _source, _shares
    _shares += 1
    _source = Source(stage) if stage.group.world > 1 else None


def seeds_noted() -> list[tuple[int, str]]:
    """The seeds that the script has set since the last time: a number to compare, and what to say of it."""
    if _source is None or not _source.seeds:
        return []
    found, _source.seeds = _source.seeds, []
    return found


def agreed(value: Any) -> Any:
    """The seed to set where the script asks for this one."""
    if _source is None or value is None or _asker() not in ("script", "library"):
        return value
    return _source.agreed(value)


def process_name() -> str:
    """Equal on all workers for the same process of the script's; empty in the worker itself."""
    process = current_process()
    return "" if process.name == "MainProcess" else process.name


def install(new_seed: Callable[[], int]) -> list[Callable[[], None]]:
    """Puts all of it in; `new_seed` gives the run's seeds. Gives back what takes it out."""
    undo = [
        _replace(np.random.bit_generator, "randbits", lambda k: Stream(new_seed()).getrandbits(k)),
        _replace(random.Random, "seed", _seeds_itself(random.Random.seed, new_seed)),
    ]
    if _source is None:
        return undo
    system = random.SystemRandom
    undo += [
        _replace(os, "urandom", _or_shared(os.urandom, lambda stream, size: stream.randbytes(size))),
        _replace(system, "random", _method(system.random, lambda stream: stream.random())),
        _replace(system, "getrandbits", _method(system.getrandbits, lambda stream, k: stream.getrandbits(k))),
        _replace(system, "randbytes", _method(system.randbytes, lambda stream, n: stream.randbytes(n))),
        _replace(secrets, "randbits", secrets.SystemRandom().getrandbits),  # bound to the method that was there
    ]
    for name in IDS:
        if hasattr(uuid, name):
            undo.append(_replace(uuid, name, _or_shared(getattr(uuid, name), _identifier(int(name[-1])))))
    return undo


def _seeds_itself(plain: Any, new_seed: Callable[[], int]) -> Any:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and _asker() == "script":
            a = new_seed()
        plain(self, agreed(a), version)

    return seed


def _or_shared(plain: Callable[..., Any], shared: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        if _source is None or _source.stage.aside or _asker() != "script":
            return plain(*args, **kwargs)
        return shared(_source.stream(), *args, **kwargs)

    return ask


def _method(plain: Callable[..., Any], shared: Callable[..., Any]) -> Callable[..., Any]:
    def ask(self: random.SystemRandom, *args: Any) -> Any:
        if _source is None or _source.stage.aside or _asker() != "script":
            return plain(self, *args)
        return shared(_source.stream(), *args)

    return ask


def _identifier(version: int) -> Callable[..., uuid.UUID]:
    def identifier(stream: Stream, *_: Any, **__: Any) -> uuid.UUID:
        bits = stream.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62)
        return uuid.UUID(int=bits | version << 76 | 0x2 << 62)  # by hand: Python knows the newer versions since 3.14

    return identifier


def _replace(owner: Any, name: str, new: Any) -> Callable[[], None]:
    if not hasattr(owner, name):
        return lambda: None
    old = getattr(owner, name)
    setattr(owner, name, new)
    return lambda: setattr(owner, name, old)


def _asker() -> str:
    """Whose line asked: the script's, a library's, or torch's, Python's and our own."""
    for frame in _frames():
        if (name := frame.f_code.co_filename) not in BETWEEN:
            return "script" if frame.f_globals.get("__name__") == "__main__" else kind_of(name)
    return ""


def _frames() -> Iterator[Any]:
    frame: Any = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def kind_of(file: str) -> str:
    """Whose file this is: "script", "library" or "" (torch's, numpy's, Python's, ours)."""
    if file.startswith("<frozen"):
        return ""
    full = os.path.realpath(file)
    ours = (os.path.dirname(HERE), *(os.path.dirname(m.__file__ or "") for m in (torch, np)))
    if any(_is_below(full, folder) for folder in ours):
        return ""
    paths = sysconfig.get_paths()
    if any(_is_below(full, paths[key]) for key in ("purelib", "platlib")) or "site-packages" in full.split(os.sep):
        return "library"
    return "" if any(_is_below(full, paths[key]) for key in ("stdlib", "platstdlib")) else "script"


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(os.path.realpath(folder), ""))
