"""The file `memory.rankR.json`: what held a worker's memory at the peak of its first steps. `fit` has it written.

A part is named by what its tensors are, by the module that made them (numbers as `*`: all blocks together) and by the
line of the script under which they were made.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder

LARGEST = 16 << 20  # bytes
# In the order in which a report names them.
WEIGHTS, GRADIENTS, STATE = "weights", "gradients", "optimizer state"
ACTIVATIONS, OUTSIDE, BACKWARD, STEP = "activations", "outputs and losses", "backward", "optimizer's own tensors"
KINDS = (WEIGHTS, GRADIENTS, STATE, ACTIVATIONS, OUTSIDE, BACKWARD, STEP)


class Part(msgspec.Struct, frozen=True):
    """Tensors that were alive together."""

    kind: str
    bytes: int
    tensors: int
    module: str = ""
    line: str = ""  # of the script, as file:line


class Account(msgspec.Struct, kw_only=True):
    """Of one worker."""

    device: str
    steps: int = 0  # finished
    peak: int = 0  # bytes of all tensors at the peak
    step: int = 0  # the step of the peak …
    phase: str = ""  # … and what the worker did then
    parts: list[Part] = []
    allocated: int = 0  # peak bytes of the device's own count: with what kernels take for themselves; 0 on a CPU
    reserved: int = 0  # peak bytes that torch's allocator held
    total: int = 0  # memory of the device, or the limit; 0: not known
    others: int = 0  # bytes that other processes held on the device, at the end
    norms: bool = False  # the model has batch norm
    compiled: bool = False  # the script compiles its model: the account is that of its own operations
    leaks: list[Part] = []  # what more was alive after the last step than after each step before
    failed: str = ""  # the line at which memory ran out
    module: str = ""  # … in this module
    asked: int = 0  # bytes that could not be had; 0: not known

    def of(self, *kinds: str) -> int:
        """Bytes of these kinds at the peak."""
        return sum(part.bytes for part in self.parts if part.kind in kinds)

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch: weights, gradients, and the optimizer's state."""
        return self.of(WEIGHTS, GRADIENTS, STATE)


def account_path(folder: Path, rank: int) -> Path:
    return Path(folder) / f"memory.rank{rank}.json"


def read_account(folder: Path | Folder, rank: int) -> Account | None:
    """None if the file is missing or damaged."""
    try:
        return msgspec.json.decode(Folder.of(folder).file(f"memory.rank{rank}.json").read(LARGEST), type=Account)
    except (OSError, RecordError, msgspec.DecodeError, RecursionError):
        return None
