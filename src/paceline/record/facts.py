"""How a script is set up, as its worker saw it: `facts.rankR.json`, which `profile` leaves for the rules.

A trace says what ran; these say what it does not: which switches of torch are on, how loaders, models and optimizers
were made, how long saving took.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder

LARGEST = 16 << 20  # bytes


class LoaderFacts(msgspec.Struct, kw_only=True):
    """One DataLoader, when it was first iterated."""

    batch: int | None = None  # samples; None where it has no batch size of its own
    samples: int | None = None  # of its dataset
    processes: int = 0
    ahead: int | None = None  # batches of each process
    pinned: bool = False
    dataset: str = ""  # its class
    tensors: bool = False  # a TensorDataset, put together by torch's default: `resident` applies
    bytes: int = 0  # of those tensors


class ModelFacts(msgspec.Struct, kw_only=True):
    """One root module, at its first call."""

    name: str
    parameters: int
    bytes: int
    convolutions: int = 0  # over pictures
    channels_last: bool = False  # a weight of one of them lies so
    device: str = "cpu"


class OptimizerFacts(msgspec.Struct, kw_only=True):
    """One optimizer, at its first step."""

    name: str
    tensors: int
    momentum: bool = True  # it keeps something of earlier steps
    fused: bool = False
    foreach: bool | None = None  # None: torch decides


class SaveFacts(msgspec.Struct, kw_only=True):
    """One `torch.save`."""

    step: int
    seconds: float
    line: str = ""  # of the script, file:line


class Facts(msgspec.Struct, kw_only=True):
    """Of one worker, at its end."""

    threads: int
    backend: str = ""  # of the script's own process group, else as asked for
    gpus: int = 0  # that torch sees
    tf32: bool = False  # for products of matrices
    tf32_convolutions: bool = False
    cudnn_benchmark: bool = False
    deterministic: bool = False
    seconds: float = 0.0  # from the first step's end to the last one's
    loaders: list[LoaderFacts] = []
    models: list[ModelFacts] = []
    optimizers: list[OptimizerFacts] = []
    saves: list[SaveFacts] = []


def facts_path(folder: Path, rank: int) -> Path:
    return Path(folder) / f"facts.rank{rank}.json"


def read_facts(folder: Path | Folder, rank: int) -> Facts | None:
    """None where there are none, or where they are damaged: rules do without."""
    try:
        return msgspec.json.decode(Folder.of(folder).file(f"facts.rank{rank}.json").read(LARGEST), type=Facts)
    except (OSError, RecordError, msgspec.DecodeError, RecursionError):
        return None
