"""The options that verbs share, and what they mean where nothing was typed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline.settings import Backend, View
from paceline.topology import discover

# What comes after the script is the script's: parsing stops there.
SCRIPT_LAST = {"allow_interspersed_args": False}

HOW = "How it runs"
STALLS = "When workers wait"
OUTPUT = "What it leaves and prints"

Script = Annotated[
    str,
    typer.Argument(metavar="SCRIPT", help="A training script, or a module's name with -m.", show_default=False),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ARGUMENTS]...", help="The script's own arguments.", show_default=False),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--workers",
        metavar="N",
        help="How many workers.",
        show_default="one for each GPU",
        rich_help_panel=HOW,
    ),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module: -m package.train.")]
ViewOption = Annotated[
    View,
    typer.Option(
        "--view",
        help="What the script sees: the whole batch, or its worker's slice. auto starts with the batch.",
        rich_help_panel=HOW,
    ),
]
BatchDim = Annotated[
    int,
    typer.Option("--batch-dim", metavar="N", min=0, help="The dimension that counts the samples.", rich_help_panel=HOW),
]
Whole = Annotated[
    list[str] | None,
    typer.Option(
        "--whole",
        metavar="MODULE",
        help="Never split this module (class name or attribute path). May be repeated.",
        show_default=False,
        rich_help_panel=HOW,
    ),
]
SyncBn = Annotated[bool, typer.Option("--sync-bn", help="Batch norm sees the whole batch.", rich_help_panel=HOW)]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="Threads of each worker.",
        show_default="its share of the cores",
        rich_help_panel=HOW,
    ),
]
BackendOption = Annotated[Backend, typer.Option("--backend", help="What the workers speak over.", rich_help_panel=HOW)]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Starts the random streams; the script may seed again.",
        show_default="a new one, kept in the record",
        rich_help_panel=HOW,
    ),
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Start more workers than fit.", rich_help_panel=HOW)
]
StallWarning = Annotated[
    float,
    typer.Option(
        "--stall-warning",
        metavar="SECONDS",
        min=0.1,
        help="Say who is missing after so long.",
        rich_help_panel=STALLS,
    ),
]
StallAbort = Annotated[
    float | None,
    typer.Option(
        "--stall-abort",
        metavar="SECONDS",
        min=0.1,
        help="End the run after so long.",
        show_default="never",
        rich_help_panel=STALLS,
    ),
]
RecordParent = Annotated[
    Path, typer.Option("--record", metavar="DIR", help="Where records go.", rich_help_panel=OUTPUT)
]
ShareRecord = Annotated[
    bool,
    typer.Option("--share-record", help="Let other accounts read the record.", rich_help_panel=OUTPUT),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        help="Write loss, samples/s and the split of each step there, for TensorBoard, while it runs.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON document on standard output, nothing else.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress, no table: only what is wrong.", rich_help_panel=OUTPUT)
]

RECORDS = Path("paceline-runs")


def own_arguments(arguments: Sequence[str] | None) -> tuple[str, ...]:
    """The script's arguments; a `--` straight after the script only says that they are."""
    given = tuple(arguments or ())
    return given[1:] if given[:1] == ("--",) else given


def seed_or_new(seed: int | None) -> int:
    """A script that sets no seed gets other random numbers at each run, as under plain Python."""
    return secrets.randbelow(2**31) if seed is None else seed


def default_workers(mods: Sequence[str] = ()) -> int:
    """As many as a mod says; else one for each GPU; without one, one."""
    said = [mod.removeprefix("workers=") for mod in mods if mod.startswith("workers=")]
    return int(said[0]) if said else max(1, len(discover().gpus))


Mods = Annotated[
    list[str] | None,
    typer.Option(
        "--mod",
        metavar="NAME[=VALUE]",
        help="Change the run without changing the script: see `paceline mods`. May be repeated.",
        show_default=False,
        rich_help_panel=HOW,
    ),
]
