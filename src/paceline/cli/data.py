"""`paceline data`: packs images and datasets into TFRecord files, and checks such files."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from paceline.cli.options import OutputOptions
from paceline.cli.series import Trouble
from paceline.cli.session import Session
from paceline.cli.terminal import grid, results, stderr
from paceline.cli.verb import group, verb
from paceline.data.formats import pack as pack_format
from paceline.data.size_limits import RECORD
from paceline.errors import UsageError
from paceline.options import argument, option, read_size
from paceline.units import count, size

app = group("paceline data pack images/train", "paceline data check images/train-packed", no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class PackOptions(OutputOptions):
    PANEL: ClassVar = ""
    what: str = argument("DIR", "Image folder with one subfolder per class; or a dataset: module:name or file.py:name.")
    out: str | None = option(None, "New folder for the packed files.", "DIR", usual="DIR-packed")
    shards: int | None = option(None, "Number of files.", "N", least=1, usual="one per 128 MiB, at least 16")
    shuffle: bool = option(True, "Shuffle the records across the files.", names="--shuffle/--no-shuffle")
    seed: int = option(0, "Random seed for shuffling.", "N")
    decode: bool = option(
        True, "Decode every image first; name and leave out those that cannot be decoded.", names="--decode/--no-decode"
    )
    max_bytes: int = option(RECORD, "Largest image file to accept: 4GiB.", "SIZE", usual="1GiB", reads=read_size)


@verb(app, "paceline data pack images/train --out packed", "paceline data pack mysets.py:train --shards 32")
def pack(session: Session, asked: PackOptions) -> None:
    """Packs images, or the samples of a dataset, into TFRecord files with an index."""
    what, out, quiet, json = asked.what, asked.out, session.quiet, session.json
    is_dataset = ":" in what and not os.path.isdir(what)
    home = out or (f"{Path(what.partition(':')[0]).stem}-packed" if is_dataset else _beside(what))
    console = stderr()
    with _printing_aside(), _progress(quiet or json) as progress:
        bar = progress.add_task("packing", total=None)

        def said(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        def lost(text: str) -> None:
            where = console if progress.disable else progress.console
            where.print(f"! {text}", style="yellow", soft_wrap=True)

        how: dict[str, Any] = {"shards": asked.shards, "shuffle": asked.shuffle, "seed": asked.seed, "said": said}
        if is_dataset:
            packed = pack_format.pack_samples(_find(what), home, **how)
        else:
            packed = pack_format.pack_images(
                what, home, max_bytes=asked.max_bytes, decode=asked.decode, lost=lost, **how
            )
    trouble = _left_out(packed, home)
    if json:
        told = msgspec.to_builtins(packed)
        session.print_document(told | ({"error": asdict(trouble)} if trouble else {}))
    elif not quiet:
        classes = f", {len(packed.classes)} classes" if packed.classes else ""
        decoder = "data.decode_example" if packed.kind == "images" else "data.decode_sample"
        print(f"{packed.records} records{classes} in {len(packed.files)} files, {size(packed.bytes)}: {home}")
        print("read them:\n    from paceline import data")
        print(f'    samples = data.files("{home}/*.tfrecord").records().map({decoder})', flush=True)
    if trouble:
        console.print(f"paceline: {trouble.message}\n  {trouble.advice}", soft_wrap=True)
        raise typer.Exit(1)


def _left_out(packed: pack_format.Packed, home: str) -> Trouble | None:
    """The error, if images are missing from the packed files."""
    if not packed.left_out:
        return None
    lost = count(len(packed.left_out), "image")
    return Trouble(
        "DataError",
        f"{lost} cannot be decoded, and {'is' if len(packed.left_out) == 1 else 'are'} not in {home}.",
        "Write the images again, or remove them from the folder. To pack all files as they are: --no-decode",
    )


@dataclass(frozen=True, kw_only=True)
class CheckOptions(OutputOptions):
    PANEL: ClassVar = ""
    paths: tuple[str, ...] = argument("PATH...", "TFRecord files, tar shards, or folders of them.")
    decode: bool = option(False, "Also decode every image.")
    max_bytes: int | None = option(
        None,
        "Largest record or decoded image to accept: 4GiB.",
        "SIZE",
        usual="1GiB; 256MiB for a decoded image",
        reads=read_size,
    )


@verb(app, "paceline data check packed --decode")
def check(session: Session, asked: CheckOptions) -> None:
    """Reads record files from start to end and checks every checksum and the index."""
    paths, quiet, json = asked.paths, session.quiet, session.json
    files = pack_format.files_to_check(paths)
    with _progress(quiet or json) as progress:
        bar = progress.add_task("checking", total=len(files))
        checked = []
        for path in files:
            checked.append(pack_format.check(path, decode=asked.decode, max_bytes=asked.max_bytes))
            progress.advance(bar)
    wrong = _missing(paths, checked)
    damaged = sum(len(file.damaged) for file in checked) + len(wrong)
    stale = [file.path for file in checked if file.index == "wrong"]
    if json:
        files_told = [msgspec.to_builtins(file) for file in checked]
        records = sum(file.records for file in checked)
        session.print_document({"files": files_told, "records": records, "damaged": damaged, "missing": wrong})
    else:
        _show(checked, wrong, stale, quiet=quiet)
    if damaged or stale:
        raise typer.Exit(1)


def _beside(folder: str) -> str:
    """`images/train` → `images/train-packed`, where the example of `check` looks for it."""
    path = Path(folder)
    return f"{path if path.name else path.resolve()}-packed"


@contextmanager
def _printing_aside() -> Iterator[None]:
    """What a dataset's module prints goes to standard error: standard output has the result, or the JSON document. Also
    for what is not printed by Python."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _progress(silent: bool) -> Progress:
    return Progress(console=Console(stderr=True), disable=silent or not sys.stderr.isatty(), transient=True)


def _missing(paths: Sequence[str], checked: list[pack_format.Checked]) -> list[str]:
    """Files and records that `pack` wrote into these folders and that are missing now."""
    wrong = []
    for folder in filter(os.path.isdir, paths):
        told = pack_format.told_of(folder)
        if told is None:
            continue
        found = {Path(file.path).name: file.records for file in checked if Path(file.path).parent == Path(folder)}
        wrong += [f"{folder}: {name} is missing" for name in told.files if name not in found]
        if not wrong and sum(found[name] for name in told.files) != told.records:
            wrong.append(f"{folder}: {told.records} records were packed, {sum(found.values())} are there")
    return wrong


def _show(checked: list[pack_format.Checked], wrong: list[str], stale: list[str], *, quiet: bool) -> None:
    console = results()
    if not quiet:
        table = grid("file", "records", "size", "damaged", "index", right=("records", "size", "damaged"))
        for file in checked:
            table.add_row(
                *(file.path, str(file.records), size(file.bytes), str(len(file.damaged) or "–"), file.index or "–")
            )
        console.print(table)
    for line in [line for file in checked for line in file.damaged] + wrong:
        console.print(f"! {line}", soft_wrap=True)
    for path in stale:
        console.print(f"! {path}.index does not belong to this file. Delete it: rm {path}.index", soft_wrap=True)
    if not quiet and not wrong and not stale and not any(file.damaged for file in checked):
        console.print(f"{sum(file.records for file in checked)} records, all intact")


def _find(what: str) -> Any:
    """The dataset with this name; a function is called to make one."""
    home, _, name = what.rpartition(":")
    try:
        if home.endswith(".py"):
            space = runpy.run_path(home)
        else:
            sys.path.insert(0, os.getcwd())
            space = vars(importlib.import_module(home))
    except (OSError, ImportError) as error:
        raise UsageError(f"{what} cannot be imported: {error}.", advice="Type file.py:name or module:name.") from None
    except Exception as error:
        raise UsageError(
            f"{what} cannot be imported: {type(error).__name__}: {error}.", advice=f"Check that {home} can be imported."
        ) from error
    if name not in space:
        raise UsageError(f"{what}: {home} has no {name}.", advice=f"Type the name of a dataset in {home}.")
    found: Any = space[name]
    made = found() if isinstance(found, Callable) and not hasattr(found, "__getitem__") else found  # type: ignore[arg-type]
    if not hasattr(made, "__getitem__") or not hasattr(made, "__len__"):
        raise UsageError(
            f"{what} is a {type(made).__name__}, which has no length or cannot be indexed.",
            advice="Name a map-style dataset, a list, or a function that makes one.",
        )
    return made
