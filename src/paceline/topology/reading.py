"""A topology from a file: of which kind the file is, it says itself."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import UsageError
from paceline.topology import nccl_xml, smi_matrix
from paceline.topology.machine import Topology, from_json

_LARGEST = 64 * 2**20


def read_file(path: Path) -> Topology:
    """The topology in the file. UsageError, with the line where one is to blame."""
    text = read_text(path, "--from")
    try:
        return read(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", advice=error.advice) from None


def read(text: str) -> Topology:
    """JSON of ours, XML of NCCL's, or the matrix of nvidia-smi."""
    match text.lstrip()[:1]:
        case "{":
            return from_json(text)
        case "<":
            return nccl_xml.read(text)
        case _ if " NCCL INFO " in text:
            raise UsageError("This is a log of NCCL's.", advice="Give it as one: --nccl-log FILE")
        case _:
            return smi_matrix.read(text)


def read_text(path: Path, option: str) -> str:
    """The file's text, for an option that names one."""
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(
                f"{option} {path}: more than {_LARGEST >> 20} MiB.", advice="Cut out the part in question."
            )
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(
            f"{option} {path}: {error.strerror or error}.", advice="Type the path of a file that is there."
        ) from None
