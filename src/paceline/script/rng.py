"""Random streams: equal on all workers.

The script's streams (torch, numpy, random) start from the run's seed on every worker and stay equal, because every
worker runs the same lines and draws for the whole batch (see `draws`). With `--mod random=own`, in the slice view and
for draws that cannot be split, torch's streams are swapped for the worker's own, and swapped back afterwards.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch

from paceline.script import chance

RANK_STRIDE = 1_000_003  # keeps the workers' own seeds apart from each other and from seeds people type


def start(seed: int) -> Callable[[], None]:
    """Seeds the script's streams. A script that sets its own seed later overrides this, equally on all workers.
    Returns a function that removes all patches."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    return _patch_unseeded_generators(seed % 2**32)


def _patch_unseeded_generators(run_seed: int) -> Callable[[], None]:
    """Seeding without a seed asks the operating system, which gives each worker another seed. The patches installed
    here derive the seed from the run's seed instead."""
    calls = iter(range(2**31))

    def new_seed() -> int:
        # A child process of the script (a loader's) copies the script's state: mix its name in for other seeds.
        process = zlib.crc32(name.encode()) if (name := chance.process_name()) else 0
        return (run_seed + RANK_STRIDE * (1000 + next(calls)) + process) % 2**32

    default_rng, python_seed, numpy_seed = np.random.default_rng, random.seed, np.random.seed
    torch_seed = torch.manual_seed

    def seed_torch() -> int:
        torch_seed(seed := new_seed())
        return seed

    def of_run(seed: Any) -> Any:
        return new_seed() if seed is None else chance.agreed(seed)

    owners: Any = (np.random, random, torch, torch.random, torch.cuda)
    new: list[tuple[Any, str, Any]] = [
        (owners[0], "default_rng", lambda seed=None: default_rng(of_run(seed))),
        (owners[0], "seed", lambda seed=None: numpy_seed(of_run(seed))),
        (owners[1], "seed", lambda a=None, version=2: python_seed(of_run(a), version)),
        *((owner, "seed", seed_torch) for owner in owners[2:4]),
        *((owner, "manual_seed", _with_agreed_seed(owner.manual_seed)) for owner in owners[2:]),
        (owners[4], "manual_seed_all", _with_agreed_seed(owners[4].manual_seed_all)),
    ]
    plain = [(owner, name, getattr(owner, name)) for owner, name, _ in new]
    for owner, name, value in new:
        setattr(owner, name, value)
    taken_out = chance.install(new_seed)

    def undo() -> None:
        for remove in reversed(taken_out):
            remove()
        for owner, name, value in plain:
            setattr(owner, name, value)

    return undo


def _with_agreed_seed(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def manual_seed(seed: Any) -> Any:
        return plain(chance.agreed(seed))

    return manual_seed


def shift(by: int) -> None:
    """Shifts every seed that the script sets from now on: the same script, with other random numbers."""
    if not by:
        return

    def shifted(plain: Any, most: int) -> Any:
        def other(seed: Any) -> Any:
            return (int(seed) + by) % most if isinstance(seed, Integral) else seed

        def reseed(*args: Any, **kwargs: Any) -> Any:
            if args:
                return plain(other(args[0]), *args[1:], **kwargs)
            return plain(**{name: value if name == "version" else other(value) for name, value in kwargs.items()})

        return reseed

    owners: Any = (random, np.random, torch.cuda, torch)
    owners[0].seed = shifted(random.seed, 2**63)
    owners[1].seed = shifted(np.random.seed, 2**32)
    for name in ("manual_seed", "manual_seed_all"):
        setattr(owners[2], name, shifted(getattr(torch.cuda, name), 2**63))
    owners[3].manual_seed = torch.random.manual_seed = shifted(torch.manual_seed, 2**63)


class OwnStream:
    """A worker's own torch streams, for use inside sliced calls."""

    def __init__(self, seed: int, rank: int) -> None:
        self._seed = seed + RANK_STRIDE * (rank + 1)
        self.position: list[torch.Tensor] | None = None  # None: at the start

    @contextmanager
    def inside(self) -> Iterator[None]:
        outside = _states()
        if self.position is None or len(self.position) != len(outside):
            torch.manual_seed(self._seed)
        else:
            _set_states(self.position)
        try:
            yield
        finally:
            self.position = _states()
            _set_states(outside)


def _states() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states


def _set_states(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1])


def snapshot() -> tuple[Any, ...]:
    """All random streams of the script, to be compared or restored."""
    return (_states(), random.getstate(), np.random.get_state())


def digest() -> int:
    """A checksum of all random streams of the script."""
    numpy: Any = np.random.get_state()
    streams = [state.numpy().tobytes() for state in _states()]
    return zlib.crc32(b"".join([*streams, numpy[1].tobytes(), repr((numpy[2:], random.getstate())).encode()]))


def python_digest() -> int:
    """A checksum of Python's own stream."""
    return hash(random.getstate())


def restore(streams: tuple[Any, ...]) -> None:
    states, python, numpy = streams
    _set_states(states)
    random.setstate(python)
    np.random.set_state(numpy)


def drawn_since(streams: tuple[Any, ...]) -> bool:
    """Whether anything was drawn from the script's streams since the snapshot."""
    states, python, numpy = streams
    now: Any = np.random.get_state()
    return (
        any(not torch.equal(a, b) for a, b in zip(states, _states(), strict=False))
        or random.getstate() != python
        or now[2] != numpy[2]  # the position in the block, then the block itself
        or not np.array_equal(now[1], numpy[1])
    )
