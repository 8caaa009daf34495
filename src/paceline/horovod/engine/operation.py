"""An operation in flight, from its submission to the moment at which its submitter has the result.

A training step makes thousands of them, so little is computed before it is needed.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch

from paceline.horovod.engine.messages import SUM, Request, key_of
from paceline.horovod.exceptions import HorovodInternalError


class How(NamedTuple):
    """What the script asked for besides the tensors. Equal for most operations of a script."""

    op: int = SUM
    root: int = -1
    process_set: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


PLAIN = How()


class Operation:
    """Made by the submitting thread, carried out by the background thread. The lock is held until it is done."""

    __slots__ = (
        "bytes",
        "error",
        "event",
        "how",
        "inference",
        "key",
        "kind",
        "lock",
        "name",
        "outputs",
        "repeats",
        "result",
        "signature",
        "tensors",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        tensors: list[torch.Tensor],
        outputs: list[torch.Tensor] | None = None,
        how: How = PLAIN,
        repeats: bool = False,
    ) -> None:
        """`outputs`: where the results go, if their shapes are known; None: made by the background thread. `repeats`:
        the script has given the name."""
        self.name = name
        self.kind = kind
        self.tensors = tensors
        self.outputs = outputs
        self.how = how
        self.repeats = repeats
        self.key = key_of(name, how.process_set) if how.process_set else name
        self.event: Any = None  # on a GPU: the stream of the submitter, then that of the result, has come so far
        self.inference = torch.is_inference_mode_enabled()
        self.result: Any = None
        self.error = ""
        self.lock = lock = threading.Lock()
        lock.acquire()
        # What must be as it was for a cached response to hold.
        if len(tensors) == 1:
            tensor = tensors[0]
            self.bytes = tensor.nbytes
            self.signature: tuple[Any, ...] = (kind, tensor.dtype, tensor.shape, tensor.is_cuda, how)
        else:
            self.bytes = sum(tensor.nbytes for tensor in tensors)
            self.signature = (kind, *((tensor.dtype, tensor.shape, tensor.is_cuda) for tensor in tensors), how)

    def request(self) -> Request:
        """The operation as the other ranks are told of it."""
        return Request(
            name=self.name,
            kind=self.kind,
            parts=tuple((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in self.tensors),
            device=self.tensors[0].device.type if self.tensors else "cpu",
            repeats=self.repeats,
            **self.how._asdict(),
        )

    def finish(self, result: Any = None) -> None:
        self.result = result
        self.lock.release()

    def fail(self, error: str) -> None:
        self.error = error
        self.lock.release()

    @property
    def is_done(self) -> bool:
        return not self.lock.locked() and (self.event is None or self.event.query())

    def wait(self) -> Any:
        """Waits for the end. Raises HorovodInternalError if the operation has failed."""
        if self.lock.locked():
            with self.lock:
                pass
        if self.error:
            raise HorovodInternalError(self.error)
        if self.event is not None:
            self._wait_on_gpu()
        return self.result

    def _wait_on_gpu(self) -> None:
        """As after any operation on a GPU: what this thread does next on its stream sees the result."""
        self.event.wait()
        for tensor in self.result if isinstance(self.result, (list, tuple)) else ():
            if isinstance(tensor, torch.Tensor):
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
