"""`paceline checkpoint`: shows, verifies and converts checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import typer
from rich.table import Table

from paceline.checkpoint import manifest
from paceline.checkpoint.manifest import Manifest
from paceline.checkpoint.verify import fault_of
from paceline.cli.options import JsonOptions
from paceline.cli.session import Session
from paceline.cli.terminal import grid, results
from paceline.cli.verb import group, verb
from paceline.options import argument, option
from paceline.units import count, size

NUMBERS = ("tensors", "size")  # columns
app = group("paceline checkpoint show ck", "paceline checkpoint verify ck", no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(JsonOptions):
    PANEL: ClassVar = ""
    path: Path = argument("PATH", "Folder given to paceline.save.")


@dataclass(frozen=True, kw_only=True)
class ShowOptions(VerifyOptions):
    PANEL: ClassVar = ""
    tensors: bool = option(False, "List every tensor.")


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(JsonOptions):
    PANEL: ClassVar = ""
    source: Path = argument("SOURCE", "Checkpoint of Paceline, torch file, or DCP folder.")
    target: Path = argument("TARGET", "New file (.pt, .pth, .bin, .ckpt) or folder.")
    to: Literal["paceline", "torch", "dcp"] | None = option(
        None, "Format of the target.", usual="torch for a file name, else paceline"
    )
    part: str | None = option(None, "Convert one part alone: model.", "NAME", usual="all parts by name")


@verb(app, "paceline checkpoint show ck --tensors")
def show(session: Session, asked: ShowOptions) -> None:
    """Shows what a checkpoint holds, and who saved it. Does not read the tensors."""
    content = manifest.read(asked.path)
    if session.json:
        parts = {name: {"kind": part["kind"], "class": part["class"]} for name, part in content.parts.items()}
        listed = {name: asdict(tensor) for name, tensor in content.tensors.items()}
        files = [asdict(file) for file in content.files]
        head = {"step": content.step, "saved": content.saved, "extra": content.extra, "bytes": content.bytes}
        session.print_document(head | {"parts": parts, "files": files, "tensors": listed})
        return
    console = results()
    console.print(_headline(content), soft_wrap=True)
    console.print(_parts_table(content))
    held = f"{count(len(content.tensors), 'tensor')} in {count(len(content.files), 'file')}"
    console.print(f"{held}, {size(content.bytes)}")
    if asked.tensors:
        console.print()
        console.print(_tensors_table(content))


def _headline(content: Manifest) -> str:
    saved = content.saved
    step = "no step" if content.step is None else f"step {content.step}"
    at = str(saved.get("at", "")).replace("T", " ").replace("+00:00", " UTC")
    workers = count(int(saved.get("workers", 1)), "worker")
    who = f"paceline {saved.get('paceline')}, torch {saved.get('torch')}"
    return f"{step}, saved {at} by {who}, strategy {saved.get('strategy')}, {workers}"


def _parts_table(content: Manifest) -> Table:
    table = grid("part", "class", "tensors", "size", right=NUMBERS)
    for name, part in content.parts.items():
        own = [tensor for key, tensor in content.tensors.items() if key.startswith(f"{name}/")]
        what = part["class"] or part["kind"]
        if part["kind"] == "loader":
            at = part["state"].get("at")
            what += f", behind batch {at['batches']} of its epoch" if at else ", between epochs"
        table.add_row(name, what, str(len(own) or "–"), size(sum(tensor.bytes for tensor in own)) if own else "–")
    return table


def _tensors_table(content: Manifest) -> Table:
    table = grid("tensor", "dtype", "shape", "size", right=NUMBERS)
    for name, tensor in sorted(content.tensors.items()):
        shape = " × ".join(map(str, tensor.shape)) or "scalar"
        table.add_row(name, tensor.dtype, shape, size(tensor.bytes))
    return table


@verb(app, "paceline checkpoint verify ck")
def verify(session: Session, asked: VerifyOptions) -> None:
    """Compares every file of a checkpoint with its checksum. The exit code is 1 if a file is damaged or missing."""
    path, content = asked.path, manifest.read(asked.path)
    faults = {file.path: fault_of(path, file) for file in content.files}
    wrong = {str(path / name): fault for name, fault in faults.items() if fault}
    if session.json:
        files: list[dict[str, Any]] = [asdict(file) | {"fault": faults[file.path] or None} for file in content.files]
        session.print_document({"step": content.step, "files": files, "intact": not wrong})
    else:
        console = results()
        for name, fault in wrong.items():
            console.print(f"! {name} {fault}", soft_wrap=True)
        files_said = count(len(faults), "file")
        if wrong:
            console.print(f"{len(wrong)} of {files_said} damaged: load another checkpoint")
        else:
            console.print(f"{files_said}, {size(content.bytes)}, all intact")
    raise typer.Exit(int(bool(wrong)))


@verb(app, "paceline checkpoint convert ck model.pt --part model", "paceline checkpoint convert ck out --to dcp")
def convert(session: Session, asked: ConvertOptions) -> None:
    """Converts between checkpoints of Paceline, torch files and DCP folders, without unpickling anything."""
    from paceline.checkpoint.convert import convert as convert_checkpoint  # imports torch

    target = asked.target
    done = convert_checkpoint(asked.source, target, to=asked.to, part=asked.part)
    if session.json:
        session.print_document(asdict(done) | {"path": str(target)})
        return
    print(f"{count(done.tensors, 'tensor')}, {size(done.bytes)}, from {done.source} to {done.target}: {target}")
    if done.left_out:
        print(f"left out, because they belong to a run: {', '.join(done.left_out)}")
    if done.target == "torch":
        print(f'read it: torch.load("{target}", weights_only=True)')
