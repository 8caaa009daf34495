"""`checkpoint.json`: what a checkpoint holds, and which files hold it. Works without torch.

    ck/
      checkpoint.json                     replaced atomically: the checkpoint is whatever this file names
      tensors-3f9a01c2d4e5/
        rank0-00001.safetensors           whole tensors, about 1 GiB a file

A save writes a new tensors folder, then replaces checkpoint.json, then removes the old tensors folder. So the path
holds a complete checkpoint at every moment. A save that was killed leaves only a folder that checkpoint.json does not
name; the next save removes it. The first line of checkpoint.json has the checksum of the rest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError

NAME = "checkpoint.json"
FORMAT, VERSION = "paceline-checkpoint", 1
FOLDER = re.compile(r"tensors-[0-9a-f]{12}")
TEMPORARY = re.compile(r"checkpoint\.json\.[0-9a-f]{12}")
LOCK = ".lock"
_HEAD = re.compile(rb'\{"format": "([^"]*)", "version": (\d+), "sha256": "([0-9a-f]{64})", "content":\n')


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of tensors. `path` is relative to the checkpoint's folder."""

    path: str
    bytes: int
    crc32: str  # see `verify.digest`


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A whole tensor: its own dtype (torch's name) and shape, and the file that has its bytes."""

    file: str
    dtype: str
    shape: list[int]
    bytes: int


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The content of checkpoint.json."""

    step: int | None = None
    saved: dict[str, Any] = field(default_factory=dict)  # who saved it: versions, strategy, workers, time, Slurm job
    parts: dict[str, Any] = field(default_factory=dict)  # by name: {"kind", "state"}, tensors by reference
    extra: Any = None
    random: list[Any] = field(default_factory=list)  # random-number states, one for each stream of its own
    files: list[StoredFile] = field(default_factory=list)
    tensors: dict[str, StoredTensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The size of all tensor files."""
        return sum(file.bytes for file in self.files)


def new_folder_name() -> str:
    return f"tensors-{secrets.token_hex(6)}"


def write(folder: Path, manifest: Manifest) -> None:
    """Makes this the checkpoint of the folder. Returns when that is on the disk."""
    content = {
        "step": manifest.step,
        "saved": manifest.saved,
        "extra": manifest.extra,
        "parts": manifest.parts,
        "random": manifest.random,
        "files": [{"path": f.path, "bytes": f.bytes, "crc32": f.crc32} for f in manifest.files],
        "tensors": {
            name: {"file": t.file, "dtype": t.dtype, "shape": t.shape, "bytes": t.bytes}
            for name, t in manifest.tensors.items()
        },
    }
    body = json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    sha = hashlib.sha256(body).hexdigest()
    head = f'{{"format": "{FORMAT}", "version": {VERSION}, "sha256": "{sha}", "content":\n'
    temporary = folder / f"{NAME}.{secrets.token_hex(6)}"
    with open(temporary, "xb") as file:
        file.write(head.encode() + body + b"}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / NAME)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Returns when the folder's entries are on the disk, where the file system can do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def read(folder: Path) -> Manifest:
    """The checkpoint of the folder. Raises CheckpointError if there is none, or if checkpoint.json is damaged."""
    path = folder / NAME
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _nothing(folder) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    head = _HEAD.match(raw)
    if head is None or not raw.endswith(b"}\n"):
        raise damaged(path, "is truncated, or is not a checkpoint.json of Paceline")
    if int(head[2]) > VERSION:
        raise CheckpointError(
            f"{path} has format version {int(head[2])}; this Paceline reads versions up to {VERSION}.",
            advice="Install a newer Paceline: pip install --upgrade paceline",
        )
    body = raw[head.end() : -2]
    if hashlib.sha256(body).hexdigest() != head[3].decode():
        raise damaged(path, "does not have the content that was written: its checksum differs")
    try:
        content = json.loads(body)
        content["files"] = [StoredFile(**entry) for entry in content["files"]]
        content["tensors"] = {name: StoredTensor(**entry) for name, entry in content["tensors"].items()}
        manifest = Manifest(**content)
        _check_places(path, manifest)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise damaged(path, "is not a checkpoint.json of Paceline") from None
    return manifest


def _check_places(path: Path, manifest: Manifest) -> None:
    """A checkpoint from a stranger names files in its own folder only, and sizes that fit the shapes."""
    known = {file.path for file in manifest.files}
    for name in known:
        above, _, file = name.rpartition("/")
        if not FOLDER.fullmatch(above) or file != os.path.basename(file) or file in ("", ".", ".."):
            raise damaged(path, f"names the file {name!r}, which is not one of a checkpoint")
    for name, tensor in manifest.tensors.items():
        if tensor.file not in known:
            raise damaged(path, f"names the file {tensor.file!r} of {name!r}, which it does not list")
        if any(not isinstance(size, int) or size < 0 for size in tensor.shape) or (
            math.prod(tensor.shape) == 0 and tensor.bytes
        ):
            raise damaged(path, f"has an impossible shape of {name!r}")


def damaged(path: Path, how: str) -> CheckpointError:
    """The error for a file that is not as it was written."""
    return CheckpointError(
        f"{path} {how}.",
        advice=f"Load another checkpoint. To check all files of this one: paceline checkpoint verify {_above(path)}",
    )


def _above(path: Path) -> Path:
    """The checkpoint's folder, from the path of one of its files."""
    return path.parent.parent if FOLDER.fullmatch(path.parent.name) else path.parent


def _nothing(folder: Path) -> CheckpointError:
    if not folder.exists():
        return CheckpointError(f"{folder} does not exist.", advice="Type the path that was given to paceline.save.")
    if not folder.is_dir():
        return CheckpointError(
            f"{folder} is a file, not the folder of a checkpoint.",
            advice=f"To make a checkpoint from a torch file: paceline checkpoint convert {folder} NEW",
        )
    if any(FOLDER.fullmatch(entry.name) for entry in folder.iterdir()):
        return CheckpointError(
            f"{folder} has no {NAME}: its first save did not finish.", advice="Load another checkpoint, or save again."
        )
    return CheckpointError(f"{folder} has no {NAME}: it is not a checkpoint.", advice="Type another path.")
