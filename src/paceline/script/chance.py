"""Makes unseeded randomness equal on all workers, where that does no harm.

    call                                                  caller         what Paceline does
    numpy generators without a seed, default_rng()        any            seeds from the run's seed
    random.Random()                                       the script     seeds from the run's seed
    os.urandom, secrets, SystemRandom, uuid1, uuid4 …     the script     bytes that the workers of this run share
    random.seed(x), torch.manual_seed(x), default_rng(x)  the script,    uses rank 0's x until training begins, and
      np.random.seed(x), random.Random(x),                libraries      compares x between workers afterwards
      torch.Generator().manual_seed(x)
    torch.Generator().seed()                              the script     seeds from the run's seed
    time.time(), perf_counter() … that decide a branch    the script     rank 0's: see `clock`

Libraries still get the operating system's randomness, because they need values that differ between processes: names of
temporary files, keys of processes, ids. Only a call from the script's own files gets the same answer on every worker.
That answer differs in every run, whatever `--seed` is, because a script may name its folders by such a value.

Nothing here can hang. A worker waits at most `PATIENCE` seconds for rank 0's seed, and rank 0 waits for no worker.
Seeds set in threads, in the script's own child processes and in datasets are left alone. The seed of `RandomState(x)`
is not intercepted: if it differs between workers, so do arguments or weights, which are compared.
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
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing import current_process
from typing import Any

import numpy as np
import torch

from paceline.comm.call_site import script_line
from paceline.script import clock
from paceline.script.state import StageState

PATIENCE = 10.0  # seconds that a worker waits for rank 0 to reach the same seeding call
SHARED = 32  # seeds taken from rank 0, at the start of the script. Later seeds may be many and are only compared
ENTROPY = 32  # bytes
SEEDABLE = (int, float, str)
HERE = os.path.dirname(__file__)
# Files whose frames lie between the random call and its caller.
BETWEEN = {
    *(m.__file__ for m in (random, secrets, uuid)),
    *(os.path.join(HERE, n) for n in ("rng.py", "chance.py")),
}
IDS = ("uuid1", "uuid4", "uuid6", "uuid7")

_source: RandomSource | None = None  # of this process; None with one worker
_shares = 0  # number of `share` calls so far: each uses store keys of its own


class RandomStream(random.Random):
    """A generator for internal use: its seed is neither shared nor compared."""

    seed = random.Random.seed


class RandomSource:
    """The randomness that the workers of a run share: bytes of the operating system, and the script's own seeds."""

    def __init__(self, stage: StageState) -> None:
        """Every worker makes one before the script begins; waits for rank 0's bytes."""
        self.stage, self.group = stage, stage.group
        entropy = torch.frombuffer(bytearray(os.urandom(ENTROPY)), dtype=torch.uint8)
        self.group.broadcast(entropy, "the run's random bytes")
        self._entropy = entropy.numpy().tobytes()
        self._store = self.group.store(f"seeds{_shares}")
        self._pid, self._streams = os.getpid(), dict[str, RandomStream]()
        self._asked = 0
        self.seeds: list[tuple[int, str]] = []  # noted, and not yet compared

    def stream(self) -> RandomStream:
        """The stream for calls from the script: equal on all workers, different in each process of the script."""
        name = process_name()
        if name not in self._streams:
            self._streams[name] = RandomStream(self._entropy + name.encode())
        return self._streams[name]

    def agreed(self, value: Any) -> Any:
        """The value to use for a seed that the script sets. Notes the value for the comparison between workers."""
        if not self.is_in_order():
            return value
        if self._asked < SHARED and not self.stage.trained and isinstance(value, SEEDABLE):
            self._asked += 1
            value = self._from_rank_0(f"{self._asked}", value)
        if isinstance(value, (*SEEDABLE, bytes, list, tuple, np.integer, np.ndarray)):
            text = f"{value!r}"
            self.seeds.append((zlib.crc32(text.encode()), f"{text[:80]} at {script_line()}"))
        return value

    def _from_rank_0(self, key: str, value: Any) -> Any:
        if self.group.rank == 0:
            self._store.set(key, json.dumps(value))
            return value
        try:
            self._store.wait([key], datetime.timedelta(seconds=PATIENCE))
            found = json.loads(self._store.get(key))
        except (RuntimeError, ValueError):  # rank 0 took another branch: the next comparison between workers tells
            return value
        return found if type(found) is type(value) else value

    def is_in_order(self) -> bool:
        """Whether all workers reach this call in the same order: not in a thread or a child process of the script, not
        while a dataset loads samples of this worker only, not inside a model's call on a slice."""
        stage = self.stage
        return (
            os.getpid() == self._pid
            and threading.current_thread() is threading.main_thread()
            and not (stage.aside or stage.depth or stage.backward_depth)
            and stage.watch.phase != "data"
        )


def share(stage: StageState) -> None:
    """Every worker calls it before the script begins, so that `install` can share randomness between workers."""
    global _source, _shares
    _shares += 1
    _source = RandomSource(stage) if stage.group.world > 1 else None


def seeds_noted() -> list[tuple[int, str]]:
    """The seeds that the script has set since the last call: a checksum to compare, and a text that names the line."""
    if _source is None or not _source.seeds:
        return []
    found, _source.seeds = _source.seeds, []
    return found


def agreed(value: Any) -> Any:
    """The seed to use when the script sets this one."""
    if _source is None or value is None or _caller_kind() not in ("script", "library"):
        return value
    return _source.agreed(value)


def process_name() -> str:
    """The same on all workers for the same child process of the script; empty in the worker itself."""
    process = current_process()
    return "" if process.name == "MainProcess" else process.name


def install(new_seed: Callable[[], int]) -> list[Callable[[], None]]:
    """Installs all patches; `new_seed` returns seeds derived from the run's seed. Returns functions that undo them."""
    undo = [
        _replace(np.random.bit_generator, "randbits", lambda k: RandomStream(new_seed()).getrandbits(k)),
        _replace(random.Random, "seed", _seed_from_run(random.Random.seed, new_seed)),
    ]
    if _source is None:
        return undo
    system = random.SystemRandom
    undo += [
        _replace(os, "urandom", _shared_for_script(os.urandom, lambda stream, size: stream.randbytes(size))),
        _replace(system, "random", _method(system.random, lambda stream: stream.random())),
        _replace(system, "getrandbits", _method(system.getrandbits, lambda stream, k: stream.getrandbits(k))),
        _replace(system, "randbytes", _method(system.randbytes, lambda stream, n: stream.randbytes(n))),
        _replace(secrets, "randbits", secrets.SystemRandom().getrandbits),  # secrets had bound the plain method
        _replace(torch, "Generator", _generators(new_seed)),
    ]
    for name in IDS:
        if hasattr(uuid, name):
            undo.append(_replace(uuid, name, _shared_for_script(getattr(uuid, name), _identifier(int(name[-1])))))
    is_the_scripts = lambda file: kind_of(file) == "script"  # noqa: E731
    for name, new in list(clock.agreed(_source.group, _source.is_in_order, is_the_scripts)):
        undo.append(_replace(time, name, new))
    return undo


def _generators(new_seed: Callable[[], int]) -> type:
    """torch.Generator, with seeds that the workers share. A class of C cannot be patched, so this one is derived from
    it; generators that torch made itself count as its own."""
    plain: Any = torch.Generator

    class Kind(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, plain)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, plain)

    class Generator(plain, metaclass=Kind):
        __module__, __doc__ = "torch", plain.__doc__

        def manual_seed(self, seed: int) -> Any:
            return super().manual_seed(agreed(seed))

        def seed(self) -> int:
            if _caller_kind() != "script":
                return int(super().seed())
            return int(super().manual_seed(new_seed()).initial_seed())

    return Generator


def _seed_from_run(plain: Any, new_seed: Callable[[], int]) -> Any:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and _caller_kind() == "script":
            a = new_seed()
        plain(self, agreed(a), version)

    return seed


def _shared_for_script(plain: Callable[..., Any], shared: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        if _source is None or _source.stage.aside or _caller_kind() != "script":
            return plain(*args, **kwargs)
        return shared(_source.stream(), *args, **kwargs)

    return ask


def _method(plain: Callable[..., Any], shared: Callable[..., Any]) -> Callable[..., Any]:
    def ask(self: random.SystemRandom, *args: Any) -> Any:
        if _source is None or _source.stage.aside or _caller_kind() != "script":
            return plain(self, *args)
        return shared(_source.stream(), *args)

    return ask


def _identifier(version: int) -> Callable[..., uuid.UUID]:
    def identifier(stream: RandomStream, *_: Any, **__: Any) -> uuid.UUID:
        bits = stream.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62)
        return uuid.UUID(int=bits | version << 76 | 0x2 << 62)  # uuid.UUID accepts the newer versions since Python 3.14

    return identifier


def _replace(owner: Any, name: str, new: Any) -> Callable[[], None]:
    if not hasattr(owner, name):
        return lambda: None
    old = getattr(owner, name)
    setattr(owner, name, new)
    return lambda: setattr(owner, name, old)


def _caller_kind() -> str:
    """The kind of file that made the call: "script", "library", or "" (torch, numpy, Python, Paceline)."""
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
    """The kind of a file: "script", "library" or "" (torch, numpy, Python, Paceline)."""
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
