"""Libraries that open files in native code, past Python's `open`: their paths lead into the layer, too.

A table of the functions that take a path. On a rank above 0, a call of such a function gets the path in the layer. A
library is patched when the script imports it.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.imports import after_import

FOLDER = "folder"  # the function writes files into a folder, which exists or which it makes


@dataclass(frozen=True, slots=True)
class Entrance:
    """A function that takes a path. `mode` is that of Python's `open`, or FOLDER, or the name of the argument that says
    it with its default (`mode=r`)."""

    function: str  # a function, or Class.method
    path: str  # the argument's name
    mode: str
    at: int = 0  # the argument's position, without `self`


def _of(prefix: str, names: str, path: str, mode: str, at: int = 0) -> tuple[Entrance, ...]:
    return tuple(Entrance(prefix + name, path, mode, at) for name in names.split())


ENTRANCES: dict[str, tuple[Entrance, ...]] = {
    "torch._C": (
        Entrance("PyTorchFileWriter.__init__", "file_name", "w"),
        Entrance("PyTorchFileReader.__init__", "name", "r"),
    ),
    "torch.storage": (Entrance("UntypedStorage.from_file", "filename", "r"),),
    "torch.jit._script": (Entrance("RecursiveScriptModule.save", "f", "w"),),
    "torch.jit": (Entrance("save", "f", "w", at=1), Entrance("load", "f", "r")),
    "safetensors._safetensors_rust": (
        Entrance("serialize_file", "filename", "w", at=1),
        Entrance("safe_open", "filename", "r"),
        Entrance("_safe_open_handle", "filename", "r"),
    ),
    "tokenizers": (Entrance("Tokenizer.save", "path", "w"), Entrance("Tokenizer.from_file", "path", "r")),
    "tokenizers.models": (Entrance("Model.save", "folder", FOLDER),),
    "h5py._hl.files": (Entrance("File.__init__", "name", "mode=r"),),
    "tables.file": (Entrance("open_file", "filename", "mode=r"),),
    "pyarrow.lib": _of("", "OSFile memory_map", "path", "mode=r"),
    "pyarrow.parquet.core": (
        Entrance("ParquetWriter.__init__", "where", "w"),
        Entrance("ParquetFile.__init__", "source", "r"),
        Entrance("ParquetDataset.__init__", "path_or_paths", "r"),
        Entrance("write_to_dataset", "root_path", FOLDER, at=1),
    ),
    "pyarrow.feather": (Entrance("write_feather", "dest", "w", at=1), Entrance("read_table", "source", "r")),
    "polars": (
        *_of("DataFrame.", "write_csv write_parquet write_ipc write_json write_ndjson write_avro", "file", "w"),
        *_of("LazyFrame.", "sink_csv sink_parquet sink_ipc sink_ndjson", "path", "w"),
        *_of("", "read_csv read_parquet read_ipc read_json read_ndjson read_avro", "source", "r"),
        *_of("", "scan_csv scan_parquet scan_ipc scan_ndjson", "source", "r"),
    ),
    "lmdb": (Entrance("open", "path", FOLDER), Entrance("Environment", "path", FOLDER)),
    "cv2": (Entrance("imwrite", "filename", "w"), Entrance("imread", "filename", "r")),
    "soundfile": (Entrance("SoundFile.__init__", "file", "mode=r"),),
}


def install(place: Callable[[Any, str], Any]) -> None:
    """Patches this process. `place(path, mode)` is the path to use instead."""
    for name, entrances in ENTRANCES.items():
        after_import(name, functools.partial(_patch_all, entrances, place))


def _patch_all(entrances: tuple[Entrance, ...], place: Callable[[Any, str], Any], module: Any) -> None:
    for entrance in entrances:
        owner, _, name = entrance.function.rpartition(".")
        where = getattr(module, owner, None) if owner else module
        plain = getattr(where, name, None)
        if plain is None:
            continue  # another version of the library
        static = owner != "" and inspect.isbuiltin(plain)
        new = _leads(plain, entrance, place, entrance.at + (owner != "" and not static))
        setattr(where, name, staticmethod(new) if static else new)


def _leads(plain: Any, entrance: Entrance, place: Callable[[Any, str], Any], at: int) -> Callable[..., Any]:
    argument, _, default = entrance.mode.partition("=")

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        holder: Any = given if len(given) > at else kwargs
        key: Any = at if holder is given else entrance.path
        if (holder is given or key in kwargs) and isinstance(holder[key], (str, bytes, os.PathLike)):
            mode = argument
            if default:  # the mode is the argument after the path
                mode = given[at + 1] if len(given) > at + 1 else kwargs.get(argument, default)
            elif kwargs.get("readonly"):  # lmdb: a database may be large, and need not be copied for reading
                mode = "r"
            holder[key] = place(holder[key], mode)
        return plain(*given, **kwargs)

    return call
