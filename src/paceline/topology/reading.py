"""Reads a topology from a file. The content decides the format."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import UsageError
from paceline.topology import nccl_xml, smi_matrix
from paceline.topology.machine import Topology, from_json

_LARGEST = 64 * 2**20  # bytes


def read_file(path: Path) -> Topology:
    """The topology in the file. Raises UsageError, with the line if one is at fault."""
    text = read_text(path, "--from")
    try:
        return read(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", advice=error.advice) from None


def read(text: str) -> Topology:
    """The topology in a text: JSON of `paceline topo`, XML of NCCL, or the matrix of nvidia-smi."""
    match text.lstrip()[:1]:
        case "{":
            return from_json(text)
        case "<":
            return nccl_xml.read(text)
        case _ if " NCCL INFO " in text:
            raise UsageError("This file is an NCCL log, not a topology.", advice="Type: --nccl-log FILE")
        case _:
            return smi_matrix.read(text)


def read_text(path: Path, option: str) -> str:
    """The text of a file that was passed with `option`. Raises UsageError if the file cannot be read."""
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(
                f"{option} {path}: the file is larger than {_LARGEST >> 20} MiB.",
                advice="Save only the relevant part to a smaller file.",
            )
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(
            f"{option} {path}: {error.strerror or error}.", advice="Type the path of an existing file."
        ) from None
