"""Work that every worker does a part of: an exception in one worker's part is raised by all workers, or by none.

In plain Python a model that raises for one row raises for the whole batch. Here one worker holds that row. It answers
its peers' next collective with its failure (`comm.called_off`), so the case without an exception needs no extra
exchange, unless the work ends without a collective. Then all workers receive the exception of the lowest rank that
failed, undo the changes of the work, and raise the exception.

Exceptions travel as plain values: the type's name, and those arguments and attributes that are numbers or texts. A
peer looks the type up in its own process; nothing is unpickled.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch

from paceline.comm.ending import CalledOff, Regrouping
from paceline.comm.group import Group
from paceline.comm.members import lost_at
from paceline.errors import PacelineError, PeerRaisedError

PLAIN = (str, bytes, bool, int, float, type(None))


class Raised(msgspec.Struct, array_like=True):
    """The failure of one worker's part: the exception, the random streams at that point, and the result of `tell`."""

    module: str
    name: str
    text: str
    args: list[Any] | None  # None: at least one argument is not a plain value
    attributes: dict[str, Any]
    trace: str
    told: list[Any]
    python: Any
    numpy: list[Any]
    torch: list[bytes]


class Together:
    """Runs shared work on one worker. Every worker does the same work at the same time."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._warned = False
        self._shared: Exception | None = None  # raised in joint work that is part of other joint work

    def do(
        self,
        work: Callable[..., Any],
        *args: Any,
        tell: Callable[[], list[Any]] = list,
        undo: Callable[[int, list[Any]], None] | None = None,
        again: Callable[[], None] | None = None,
        once: bool = False,
    ) -> Any:
        """Runs `work(*args)`. If it raises on any worker, each worker that failed calls `tell`, all workers call `undo`
        with the lowest rank that failed and its `tell`, and all raise its exception. `undo` may use collectives.

        If a worker is lost and the run goes on without it, the others call `again`, which must leave the state before
        the work, and do the work anew. Joint work inside other joint work leaves that to the outer one, unless that is
        done `once`: each of its parts is done again alone."""
        while True:
            self.group.redone += not once
            try:
                return self._do(work, args, tell, undo)
            except Regrouping:
                if self.group.redone > (not once):
                    raise
                if again is None:
                    raise self.group.ending.carry(lost_at("joint work")) from None
            finally:
                self.group.redone -= not once
            self.group.regroup()
            again()

    def _do(
        self,
        work: Callable[..., Any],
        args: tuple[Any, ...],
        tell: Callable[[], list[Any]],
        undo: Callable[[int, list[Any]], None] | None,
    ) -> Any:
        if self.group.world == 1:
            return work(*args)
        own: Exception | None = None
        self.group.guarded += 1
        try:
            return work(*args)
        except CalledOff:
            pass
        except PacelineError:
            raise
        except Exception as error:
            if error is self._shared:  # raised by all workers, in joint work that was part of this
                self._shared = error if self.group.guarded > 1 else None
                raise
            if not self.group.off:  # else the exception is a consequence of a peer's failure
                own = error
                self.group.agree(failed=True)
        finally:
            self.group.guarded -= 1
        self.group.begin_again()
        first, raised = self._first(own, tell)
        if undo is not None:
            undo(first, raised.told)
        set_streams(raised)
        joint = self._rebuilt(own, first, raised)
        self._shared = joint if self.group.guarded else None
        raise joint

    def meet_since(self, collectives: int) -> None:
        """Ends the work: a worker that passes here knows that no worker failed. `collectives` is the pulse's count at
        the end of the script's own part; a collective made since then has shown it already."""
        if self.group.world > 1 and self.group.pulse.collectives == collectives:
            self.group.agree()

    def _first(self, own: Exception | None, tell: Callable[[], list[Any]]) -> tuple[int, Raised]:
        """The lowest rank that failed, and its failure. Called by every worker; waits for all of them."""
        raw = b"" if own is None else msgspec.msgpack.encode(describe(own, tell()))
        mine = (
            torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            if raw
            else torch.empty(0, dtype=torch.uint8, device="cpu")
        )
        what = "an exception that a worker raised"
        sizes = self.group.gather_vectors(torch.tensor([mine.numel()], device="cpu"), what).flatten().tolist()
        first = next(rank for rank, size in enumerate(sizes) if size)
        only = [size if rank == first else 0 for rank, size in enumerate(sizes)]
        sent = self.group.gather_rows(mine[: only[self.group.rank]], 0, only, what)
        return first, msgspec.msgpack.decode(sent.numpy().tobytes(), type=Raised)

    def _rebuilt(self, own: Exception | None, first: int, raised: Raised) -> Exception:
        if own is not None and (first == self.group.rank or _is_same(own, raised)):
            return own
        error = rebuild(raised)
        if error is None:
            error = RuntimeError(raised.text)
            if not self._warned:
                self._warned = True
                self.group.pulse.notice(
                    f"Worker {first} raised a {raised.name}, which the other workers cannot build: they raise a "
                    "RuntimeError with the same text."
                )
        error.__cause__ = PeerRaisedError(f"Worker {first} raised this in its part of the batch:\n{raised.trace}")
        return error


def rebuild(raised: Raised) -> Exception | None:
    """The exception, rebuilt with the same type in this process; None if that is not possible."""
    kind = next((k for k in _kinds(Exception) if (k.__module__, k.__qualname__) == (raised.module, raised.name)), None)
    if kind is None:
        return None
    args = [raised.text] if raised.args is None else raised.args
    try:
        # Skips a script's own __init__, which may need other arguments than it stores, and may have side effects.
        own_init = hasattr(kind.__init__, "__code__")
        error = kind.__new__(kind, *args) if own_init else kind(*args)
        vars(error).update(raised.attributes)
        str(error)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None


def describe(error: Exception, told: list[Any]) -> Raised:
    """What other workers need to raise the same exception."""
    kind = type(error)
    state: Any = np.random.get_state()
    filename = (error.filename,) if isinstance(error, OSError) and error.filename is not None else ()
    args = [*error.args, *filename]  # Python keeps the file name out of `args`
    return Raised(
        module=kind.__module__,
        name=kind.__qualname__,
        text=_text(error),
        args=args if all(map(is_plain, args)) else None,
        attributes={name: value for name, value in vars(error).items() if is_plain(value)},
        trace="".join(traceback.format_exception(error)),
        told=told,
        python=random.getstate(),
        numpy=[state[0], np.asarray(state[1], dtype=np.uint32).tobytes(), *map(float, state[2:])],
        torch=[state.numpy().tobytes() for state in _torch_states()],
    )


def is_plain(value: Any) -> bool:
    """Whether the value can be sent as it is."""
    if type(value) in (tuple, list):
        return all(map(is_plain, value))
    return type(value) in PLAIN and (type(value) is not int or value.bit_length() < 64)


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _is_same(own: Exception, raised: Raised) -> bool:
    kind = type(own)
    return (kind.__module__, kind.__qualname__, _text(own)) == (raised.module, raised.name, raised.text)


def _kinds(kind: type[Exception]) -> Iterator[type[Exception]]:
    """All subclasses of this type in this process, and the type; of equal names, the newest first."""
    for below in reversed(type.__subclasses__(kind)):
        yield from _kinds(below)
    yield kind


def set_streams(raised: Raised) -> None:
    """Random streams belong to the script also inside a call: all workers take the failed worker's."""
    version, inner, gauss = raised.python
    random.setstate((version, tuple(inner), gauss))
    name, keys, position, has_gauss, gauss = raised.numpy
    np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), int(position), int(has_gauss), gauss))
    setters = (torch.set_rng_state, torch.cuda.set_rng_state)
    for put, raw, _ in zip(setters, raised.torch, _torch_states(), strict=False):
        put(torch.frombuffer(bytearray(raw), dtype=torch.uint8))


def _torch_states() -> list[torch.Tensor]:
    """The state of the CPU's stream, and of the GPU's if it was used."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else ())]
