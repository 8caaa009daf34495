"""Keeps a worker's memory account (`record.account`): which tensors are alive, and at the peak, what they are.

Every operation is seen. A tensor's memory is entered when an operation returns it, under the module whose forward runs
and the script's line, and taken out when torch frees it. What kernels take for themselves is not seen; on a GPU the
device's own count has it.
"""

from __future__ import annotations

import re
import shlex
import sys
import traceback
import weakref
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from paceline.comm.call_site import is_of_library
from paceline.options import repeated
from paceline.record.account import (
    ACTIVATIONS,
    BACKWARD,
    GRADIENTS,
    OUTSIDE,
    STATE,
    STEP,
    WEIGHTS,
    Account,
    Part,
    account_path,
)
from paceline.record.writer import write_document
from paceline.script import memory, tree
from paceline.script.seams.stage import Stage
from paceline.settings import RunSettings
from paceline.torch_private import BatchNorm, DispatchMode, is_compiled, no_dispatch_modes, parameters_in
from paceline.units import parse_size, size

FINE = 1.002  # a new peak is looked at when it is so much higher than the one before
LEAKING = 3  # steps in a row after which more is alive than ever before
WORTH = 64 << 10  # bytes: less growth in a step is no leak
MOST = 200  # parts in the file
_ASKED = re.compile(r"allocate (?:memory: you tried to allocate )?([\d.]+) ?(\w*)")


class Entry(NamedTuple):
    kind: str
    module: str = ""
    line: str = ""


class Keeper(DispatchMode):
    """Of one worker. The script is played inside it; it subscribes to the seams before that."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        super().__init__()
        self._stage, self._path = stage, account_path(folder, stage.group.rank)
        self._paths: dict[int, str] = {}  # by the module's id
        self._models: list[weakref.ref[nn.Module]] = []
        self._device: torch.device | None = None  # of the models; None: nothing is counted yet
        self._live: dict[int, tuple[Entry, int, Any]] = {}  # by address
        self._sums, self._now, self._peak = Counter[Entry](), 0, 0
        self._tensors = Counter[Entry]()
        self._after: list[Counter[Entry]] = []  # what was alive after each step
        self.account = Account(device="")
        stage.subscribe(self)

    # -- seams -----------------------------------------------------------------------------------------------------

    def on_model(self, module: nn.Module) -> None:
        self._models.append(weakref.ref(module))
        first = next(parameters_in(module), None)
        if self._device is None and first is not None:
            self._device = first.device
            self.account.device = str(first.device)
        for path, inner in module.named_modules():
            # A part that the script calls by itself keeps its path in the model.
            self._paths.setdefault(id(inner), re.sub(r"\b\d+\b", "*", path) or type(inner).__name__)
            self.account.norms = self.account.norms or isinstance(inner, BatchNorm)
            self.account.compiled = self.account.compiled or is_compiled(inner)
        for tensor in (*parameters_in(module), *module.buffers()):
            self._enter(tensor, Entry(WEIGHTS))

    def after_step(self, optimizer: Any) -> None:
        self.account.steps += 1
        self._name()
        self._after.append(Counter(self._sums))

    # -- operations ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._device is not None:
            for leaf in tree.leaves(out):
                if type(leaf) is torch.Tensor and leaf.device == self._device and leaf.layout is torch.strided:
                    self._enter(leaf)
        return out

    def _enter(self, tensor: torch.Tensor, entry: Entry | None = None) -> None:
        if tensor.device != self._device:
            return
        storage = tensor.untyped_storage()
        at, count = storage.data_ptr(), storage.nbytes()
        if not at or at in self._live:
            return
        entry = entry or self._entry()
        self._live[at] = entry, count, weakref.ref(storage, lambda _: self._leave(at))
        self._count(entry, count, 1)
        if self._now > FINE * self._peak:
            self._look()
        self.account.peak = max(self.account.peak, self._now)

    def _leave(self, at: int) -> None:
        if (known := self._live.pop(at, None)) is not None:
            self._count(known[0], -known[1], -1)

    def _count(self, entry: Entry, count: int, tensors: int) -> None:
        self._now += count
        self._sums[entry] += count
        self._tensors[entry] += tensors

    def _entry(self) -> Entry:
        phase = self._stage.watch.phase
        module, line = self._where()
        if phase == "optimizer":
            return Entry(STEP)
        if phase == "backward":
            return Entry(BACKWARD, module)
        return Entry(ACTIVATIONS, module, line) if module else Entry(OUTSIDE, "", line)

    def _where(self) -> tuple[str, str]:
        """The innermost module of a model whose forward runs, and the script's innermost line."""
        frame: Any = sys._getframe(3)
        module = line = ""
        while frame is not None and not (module and line):
            code = frame.f_code
            if not line and not _is_hidden(code.co_filename):
                line = f"{code.co_filename}:{frame.f_lineno}"
            if not module and code.co_name == "forward":
                module = self._paths.get(id(frame.f_locals.get("self")), "")
            frame = frame.f_back
        return module, line

    # -- the peak --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Notes what is alive, at a new peak."""
        self._peak = self._now
        self._name()
        self.account.parts = self._parts(self._sums)
        self.account.step, self.account.phase = self.account.steps + 1, self._stage.watch.phase

    def _name(self) -> None:
        """Finds what tensors have become: gradients, and the optimizer's state."""
        with no_dispatch_modes(), suppress(RuntimeError):
            for model in self._models:
                for parameter in () if (known := model()) is None else parameters_in(known):
                    if (grad := parameter.grad) is not None:
                        self._rename(grad, GRADIENTS)
            for optimizer in self._stage.optimizers:
                for leaf in tree.leaves(list(optimizer.state.values())):
                    if isinstance(leaf, torch.Tensor):
                        self._rename(leaf, STATE)

    def _rename(self, tensor: torch.Tensor, kind: str) -> None:
        known = self._live.get(tensor.untyped_storage().data_ptr())
        if known is None or known[0].kind in (kind, WEIGHTS):
            return
        entry, count, reference = known
        self._live[tensor.untyped_storage().data_ptr()] = Entry(kind), count, reference
        self._count(entry, -count, -1)
        self._count(Entry(kind), count, 1)

    def _parts(self, sums: Counter[Entry]) -> list[Part]:
        parts = [Part(e.kind, held, max(self._tensors[e], 0), e.module, e.line) for e, held in sums.items() if held > 0]
        parts.sort(key=lambda part: -part.bytes)
        rest = defaultdict[str, int](int)
        for part in parts[MOST:]:
            rest[part.kind] += part.bytes
        return parts[:MOST] + [Part(kind, size, 0) for kind, size in rest.items()]

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self, error: BaseException | None) -> None:
        """Writes the account. Called however the script ends."""
        account, device, self._device = self.account, self._device, None
        if device is None:
            return
        if self._stage.run.memory_limit:
            memory.lift()  # writing takes some, too
        account.leaks = self._leaks()
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            held = torch.cuda.memory_reserved(device)
            account.allocated = torch.cuda.max_memory_allocated(device)
            account.reserved, account.total = torch.cuda.max_memory_reserved(device), total
            account.others = max(0, total - free - held)
        account.total = self._stage.run.memory_limit or account.total
        if error is not None and memory.ran_out(error):
            account.failed, account.module = self._failed_at(error)
            if found := _ASKED.search(str(error)):
                account.asked = parse_size(f"{found[1]}{found[2][:1].upper().replace('B', '')}") or 0
        write_document(self._path, account)

    def _leaks(self) -> list[Part]:
        """What grew after each of the last steps. The first two steps make gradients and the optimizer's state."""
        last = self._after[2:][-LEAKING - 1 :]
        if len(last) <= LEAKING:
            return []
        kinds = {entry: min(b[entry] - a[entry] for a, b in pairwise(last)) for entry in last[-1]}
        return self._parts(Counter({entry: grown for entry, grown in kinds.items() if grown > WORTH}))

    def _failed_at(self, error: BaseException) -> tuple[str, str]:
        """The script's innermost line in a traceback, and the innermost module."""
        line = module = ""
        for frame, number in traceback.walk_tb(error.__traceback__):
            if not _is_hidden(frame.f_code.co_filename):
                line = f"{frame.f_code.co_filename}:{number}"
            if frame.f_code.co_name == "forward":
                module = self._paths.get(id(frame.f_locals.get("self")), module)
        return line, module


def shortage(stage: Stage) -> str:
    """What held the memory when it ran out, in one line, and what to type; for the end of a run's traceback."""
    weights, grads, held = 0, 0, 0
    for model in stage.roots:
        for parameter in parameters_in(model):
            weights += parameter.nbytes
            grads += 0 if parameter.grad is None else parameter.grad.nbytes
    for optimizer in stage.optimizers:
        held += sum(leaf.nbytes for leaf in tree.leaves(list(optimizer.state.values())) if torch.is_tensor(leaf))
    kinds = {WEIGHTS: weights, GRADIENTS: grads, STATE: held}
    of, rest = "", ", activations and other tensors"
    if torch.cuda.is_initialized():
        limit, total = stage.run.memory_limit, torch.cuda.mem_get_info()[1]
        taken = torch.cuda.max_memory_allocated()
        kinds["activations and other tensors"] = max(0, taken - sum(kinds.values()))
        of, rest = f", at {size(taken)} of {size(limit or total)}", ""
    told = ", ".join(f"{kind} {size(count)}" for kind, count in kinds.items() if count)
    run = stage.run
    script = ["-m", run.script] if run.module else [run.script]
    command = ["paceline", "fit", *repeated(RunSettings, asdict(run), "fit"), *script, *run.arguments]
    return (
        f"Memory ran out{of}: {told or 'no weights yet'}{rest}.\n"
        f"To see what holds it, and which changes make the script fit with the same numbers, type:\n"
        f"{shlex.join(command)}"
    )


@cache
def _is_hidden(file: str) -> bool:
    return is_of_library(file)
