"""The file `facts.rankR.json`: how a script is set up, as one worker saw it. `profile` writes it for the rules, and the
first trial of `tune`, so that no mod is tried that cannot act (`mods.prospects`).

A trace shows which ops ran. The facts hold what a trace does not show: torch's settings, how loaders, models and
optimizers were made, how long each `torch.save` took.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder

LARGEST = 16 << 20  # bytes


class LoaderFacts(msgspec.Struct, kw_only=True):
    """One DataLoader, when it was first iterated."""

    batch: int | None = None  # samples; None if the loader has no batch size
    samples: int | None = None  # in the dataset
    processes: int = 0
    ahead: int | None = None  # batches that each process prefetches
    pinned: bool = False
    dataset: str = ""  # the dataset's class
    indexed: bool = True  # samples are read by index, through a batch sampler
    tensors: bool = False  # a TensorDataset with torch's default collate function: the mod `resident` applies
    bytes: int = 0  # of the TensorDataset's tensors


class ModelFacts(msgspec.Struct, kw_only=True):
    """One root module, at its first call."""

    name: str
    parameters: int
    bytes: int
    convolutions: int = 0  # 2-d convolutions
    channels_last: bool = False  # the weight of at least one convolution is in channels_last
    device: str = "cpu"
    compiled: bool = False  # by the script


class OptimizerFacts(msgspec.Struct, kw_only=True):
    """One optimizer, at its first step."""

    name: str
    tensors: int
    momentum: bool = True  # the optimizer keeps state of earlier steps
    fused: bool = False
    foreach: bool | None = None  # None: torch decides


class SaveFacts(msgspec.Struct, kw_only=True):
    """One `torch.save`."""

    step: int
    seconds: float
    line: str = ""  # the script's line, as file:line


class Facts(msgspec.Struct, kw_only=True):
    """The facts of one worker, at the end of its script."""

    threads: int
    steps: int = 0  # optimizer steps
    called_under: list[str] = []  # dtypes of the script's autocast around its models' calls; empty text: without
    backend: str = ""  # of the script's own process group if it has one, else of Paceline's
    gpus: int = 0  # number of GPUs that torch sees
    tf32: bool = False  # for matrix products
    tf32_convolutions: bool = False
    cudnn_benchmark: bool = False
    deterministic: bool = False
    seconds: float = 0.0  # from the end of the first step to the end of the last step
    loading: float = 0.0  # seconds that the script's own thread spent on making batches …
    loading_cpu: float = 0.0  # … and the CPU time of that thread meanwhile: the rest was waiting
    loaders: list[LoaderFacts] = []
    models: list[ModelFacts] = []
    optimizers: list[OptimizerFacts] = []
    saves: list[SaveFacts] = []


def facts_path(folder: Path, rank: int) -> Path:
    return Path(folder) / f"facts.rank{rank}.json"


def read_facts(folder: Path | Folder, rank: int) -> Facts | None:
    """The facts of one rank; None if the file is missing or damaged: every rule works without facts."""
    try:
        return msgspec.json.decode(Folder.of(folder).file(f"facts.rank{rank}.json").read(LARGEST), type=Facts)
    except (OSError, RecordError, msgspec.DecodeError, RecursionError):
        return None
