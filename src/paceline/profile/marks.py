"""Marks in a trace: the script's phases, and the lines that wait for the device.

The phases are those of the stopwatch, so that a trace and the record's steps have the same ones. The lines are those
that read a tensor's value on the host. torch's own stacks do not serve: they name functions, not lines, and slow every
call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import record_function

from paceline.comm.call_site import script_line
from paceline.comm.stopwatch import Stopwatch
from paceline.record.phases import CHECK, MARK

LINE = f"{MARK}line#"
# Tensor methods that make the host wait until the device has computed a value.
READS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__", "__repr__")


class Marks:
    """Between `lay` and `lift`, every phase and every call in `READS` is a `record_function`. One per worker; calls no
    collective."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._open: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    def lay(self) -> None:
        watch, opened = self._watch, self._open
        watch.traced = True
        enter, leave = watch.enter, watch.leave

        def marked_enter(phase: str) -> None:
            enter(phase)
            mark = record_function(CHECK if watch.phase == CHECK else MARK + watch.phase)
            mark.__enter__()
            opened.append(mark)

        def marked_leave() -> None:
            # A phase that was entered before `lay` has no mark.
            if opened:
                opened.pop().__exit__(None, None, None)
            leave()

        for name, method in (("enter", marked_enter), ("leave", marked_leave)):
            setattr(watch, name, method)
            self._undo.append(lambda name=name: delattr(watch, name))  # type: ignore[misc]
        for name in READS:
            self._mark_calls(torch.Tensor, name)
        self._mark_calls(torch.cuda, "synchronize")

    def lift(self) -> None:
        self._watch.traced = False
        while self._open:
            self._open.pop().__exit__(None, None, None)
        while self._undo:
            self._undo.pop()()

    def _mark_calls(self, owner: Any, name: str) -> None:
        plain = getattr(owner, name)
        inherited = name not in vars(owner)

        def call(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__", "").startswith("paceline."):
                return plain(*args, **kwargs)  # a call by Paceline is not a line of the script
            with record_function(f"{LINE}{script_line()}#{name.strip('_')}"):
                return plain(*args, **kwargs)

        setattr(owner, name, call)
        self._undo.append(lambda: delattr(owner, name) if inherited else setattr(owner, name, plain))
