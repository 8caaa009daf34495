"""`paceline.load`: puts a checkpoint into objects, under any strategy and number of workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoint import background, manifest
from paceline.checkpoint.crew import Crew, this_crew
from paceline.checkpoint.manifest import Manifest
from paceline.checkpoint.parts import faults_of, named_parts, restore
from paceline.checkpoint.safetensors_file import Reader
from paceline.checkpoint.tree import decode, references
from paceline.checkpoint.verify import fault_of, refuse_faults
from paceline.errors import CheckpointError, UsageError
from paceline.script import streams
from paceline.script.output.real_files import real_files

TRIES = 5  # a save may replace the checkpoint while it is read
SHOWN = 20  # mismatches that an error lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What `load` returns: the rest of the checkpoint."""

    step: int | None
    extra: Any  # as it was saved
    saved: dict[str, Any]  # by whom: versions of paceline and torch, strategy, workers, time, Slurm job


def load(
    path: str | os.PathLike[str],
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    *,
    random: bool = True,
    **more: Any,
) -> Loaded:
    """Loads a checkpoint: `step = paceline.load("ck", model, optimizer, loader).step`.

    Takes the objects that `save` was given, or some of them, by the same names. The next loop over the loader continues
    behind the last batch that was handed out before the save. Random-number states are set, too, unless `random=False`.

    Files are compared with their checksums, and all states with the objects, before the first object is changed. Every
    worker calls it, and waits for the others. Nothing is unpickled.
    """
    crew = this_crew()
    where = Path(crew.gather(os.path.abspath(path), "the path of a checkpoint")[0])
    background.finish(crew)
    given = {"model": model, "optimizer": optimizer, "loader": loader} | more
    parts, values = named_parts({name: value for name, value in given.items() if value is not None})
    if values:
        raise UsageError(
            f"{', '.join(values)} cannot be loaded into: a plain value is not changed in place.",
            advice="Leave it out, and take it from the result: paceline.load(…).extra",
        )
    with real_files():
        found = _read(where, list(parts), crew)
        reader = Reader(where, found)
        _refuse_misfits(where, parts, found, reader)
        for name, thing in parts.items():
            restore(thing, found.parts[name], reader)
        extra = decode(found.extra, reader.read)
    if random and found.random:
        own = crew.rank if crew.apart and len(found.random) == crew.world else 0
        streams.restore(found.random[own])
    return Loaded(step=found.step, extra=extra, saved=found.saved)


def _read(where: Path, names: list[str], crew: Crew) -> Manifest:
    """The checkpoint, whose needed files are intact. Each worker compares some of them."""
    read: list[Manifest] = []
    for number in range(TRIES):
        found = crew.each("reading checkpoint.json", lambda: _identity(where, read))
        if any(one != found[0] for one in found):
            continue
        content = read[-1]
        codes = [content.extra, *(content.parts[name]["state"] for name in names if name in content.parts)]
        needed = {content.tensors[name].file for code in codes for name in references(code)}
        files = [file for file in content.files if file.path in needed]
        own = {file.path: fault_of(where, file) for file in files[crew.rank :: crew.world]}
        shares = crew.gather(own, "the checksums of a checkpoint")
        faults = {path: fault for share in shares for path, fault in share.items() if fault}
        again = crew.first("reading checkpoint.json again", lambda: _identity(where, []))
        if not faults or again == found[0] or number == TRIES - 1:
            refuse_faults(where, faults)
            return content
    raise CheckpointError(
        f"{where} is replaced faster than it can be read.", advice="Load it when the run that saves to it has ended."
    )


def _identity(where: Path, read: list[Manifest]) -> list[str]:
    """Reads checkpoint.json into the list, and says what tells it from another one."""
    read.append(manifest.read(where))
    return [str(read[-1].step), *(f"{file.path} {file.crc32}" for file in read[-1].files)]


def _refuse_misfits(where: Path, parts: dict[str, Any], found: Manifest, reader: Reader) -> None:
    faults = []
    for name, thing in parts.items():
        if name not in found.parts:
            faults.append(f"{name}: not in the checkpoint, which has {', '.join(found.parts) or 'nothing'}")
        else:
            faults += faults_of(name, thing, found.parts[name], reader)
    if faults:
        more = [f"… and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
        raise CheckpointError(
            f"{where} does not fit:\n" + "\n".join(f"  {fault}" for fault in [*faults[:SHOWN], *more]),
            advice=f"Load it into what was saved. To see what that was: paceline checkpoint show {where}",
        )
