"""Reads and writes torch.distributed.checkpoint (DCP) folders, in one process and without running anything from them.

DCP keeps the table of contents of a folder as a pickle, and numbers and text as pickles, too. Here the table is read by
an unpickler that knows the classes of such a table and nothing else, and the rest by torch.load(weights_only=True).
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from paceline.errors import CheckpointError

TABLE = ".metadata"
HOME = "torch.distributed.checkpoint"
KNOWN = {
    *((f"{HOME}.metadata", name) for name in ("Metadata", "MetadataIndex", "TensorStorageMetadata", "StorageMeta")),
    *((f"{HOME}.metadata", name) for name in ("BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties")),
    (f"{HOME}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{HOME}.filesystem", "_StorageInfo"),
    *(("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")),
    *(("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")),
}


def is_dcp(path: Path) -> bool:
    return (path / TABLE).is_file()


def write(path: Path, state: dict[str, Any]) -> None:
    """Writes a nested state into a new folder."""
    with _alone():
        save(state, checkpoint_id=path, no_dist=True)


def read(path: Path) -> dict[str, Any]:
    """The nested state of a folder. Keys are text, as DCP keeps them. Raises CheckpointError for a folder that is
    damaged, or that has something else than tensors, numbers and text."""
    try:
        reader = _Reader(path)
        table = reader.read_metadata()
        flat = {name: _room_for(entry) for name, entry in table.state_dict_metadata.items()}
        with _alone():
            load(flat, storage_reader=reader, planner=_Planner(), no_dist=True)
    except CheckpointException as error:  # DCP's collection of what went wrong; not an Exception
        raise _refusal(path, next(iter(error.failures.values()))[0]) from None
    except Exception as error:
        raise _refusal(path, error) from None
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        _put(nested, (table.planner_data or {}).get(name, (name,)), value)
    return _with_lists(nested)


def _refusal(path: Path, error: BaseException) -> CheckpointError:
    if isinstance(error, CheckpointError):
        return error
    return CheckpointError(f"{path} cannot be read as a DCP checkpoint: {type(error).__name__}: {error}")


@contextmanager
def _alone() -> Iterator[None]:
    """DCP warns in a single process, which is meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _room_for(entry: Any) -> Any:
    if isinstance(entry, TensorStorageMetadata):
        return torch.empty(entry.size, dtype=entry.properties.dtype, device="cpu")
    return None


def _put(nested: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        nested = nested.setdefault(key, {})
    nested[path[-1]] = value


def _with_lists(nested: Any) -> Any:
    """DCP's paths have numbers for the entries of lists only."""
    if not isinstance(nested, dict):
        return nested
    made = {key: _with_lists(value) for key, value in nested.items()}
    return [made[key] for key in sorted(made)] if made and all(isinstance(key, int) for key in made) else made


class _Table(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) not in KNOWN and not is_dtype:
            raise CheckpointError(
                f"{TABLE} of the DCP checkpoint refers to {module}.{name}, which is no part of such a file.",
                advice="Do not use this file: it may run a program.",
            )
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(Path(self.path) / TABLE, "rb") as file:
            table = _Table(file).load()
        if not isinstance(table, Metadata):
            raise CheckpointError(f"{self.path}/{TABLE} is not the table of a DCP checkpoint.")
        if getattr(table, "storage_meta", None) is None:
            table.storage_meta = StorageMeta()
        return table


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        name = read_item.dest_index.fqn
        try:
            self.original_state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError:
            raise CheckpointError(
                f"{name} in the DCP checkpoint is an object that only unpickling could make.",
                advice="Save tensors, numbers, text, and lists and dicts of these.",
            ) from None
