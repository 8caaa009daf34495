"""An operation in flight, from its submission to the moment at which its submitter has the result."""

from __future__ import annotations

import threading
from typing import Any

import torch

from paceline.horovod.common.exceptions import HorovodInternalError
from paceline.horovod.engine.messages import SUM, Request, key_of

Signature = tuple[Any, ...]


class Operation:
    """Made by the submitting thread, carried out by the background thread. The lock is held until it is done."""

    __slots__ = (
        "device",
        "error",
        "event",
        "inference",
        "key",
        "kind",
        "lock",
        "name",
        "op",
        "outputs",
        "postscale",
        "prescale",
        "process_set",
        "ranks",
        "repeats",
        "result",
        "root",
        "signature",
        "splits",
        "tensors",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        tensors: list[torch.Tensor],
        outputs: list[torch.Tensor] | None = None,
        *,
        op: int = SUM,
        root: int = -1,
        process_set: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        splits: tuple[int, ...] = (),
        ranks: tuple[int, ...] = (),
        repeats: bool = False,
    ) -> None:
        """`outputs`: where the results go, if their shapes are known; None: made by the background thread."""
        self.name, self.kind, self.tensors, self.outputs = name, kind, tensors, outputs
        self.op, self.root, self.process_set = op, root, process_set
        self.key = name if not process_set else key_of(name, process_set)
        self.prescale, self.postscale, self.splits, self.ranks, self.repeats = (
            prescale,
            postscale,
            splits,
            ranks,
            repeats,
        )
        self.device = device = tensors[0].device.type if tensors else "cpu"
        self.event: Any = None  # on a GPU: the stream of the submitter, then that of the result, has come so far
        self.inference = torch.is_inference_mode_enabled()
        self.result: Any = None
        self.error = ""
        self.lock = lock = threading.Lock()
        lock.acquire()
        if len(tensors) == 1:
            (tensor,) = tensors
            parts: Any = (tensor.dtype, tensor.shape)
        else:
            parts = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        # What must be as it was for a cached response to hold.
        self.signature = (kind, parts, op, root, process_set, prescale, postscale, device, splits)

    def request(self) -> Request:
        """The operation as the other ranks are told of it."""
        return Request(
            name=self.name,
            kind=self.kind,
            parts=tuple((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in self.tensors),
            op=self.op,
            root=self.root,
            process_set=self.process_set,
            prescale=self.prescale,
            postscale=self.postscale,
            device=self.device,
            splits=self.splits,
            ranks=self.ranks,
            repeats=self.repeats,
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
        with self.lock:
            pass
        if self.error:
            raise HorovodInternalError(self.error)
        if self.event is not None:
            # As after any operation on a GPU: what this thread does next on its stream sees the result.
            self.event.wait()
            for tensor in self.result if isinstance(self.result, (list, tuple)) else ():
                if isinstance(tensor, torch.Tensor):
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return self.result
