"""The options that several verbs share, and their defaults."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline.errors import UsageError
from paceline.mods import catalog as mods
from paceline.settings import Backend, Launcher, all_variables
from paceline.strategies import catalog as strategies
from paceline.topology import discover

# Arguments after the script belong to the script, so parsing stops there.
SCRIPT_LAST = {"allow_interspersed_args": False}

HOW = "Run options"
HOSTS = "Several hosts"
STALLS = "Stalled workers"
OUTPUT = "Output"


def no_records(folder: Path, verb: str) -> UsageError:
    """The error if the folder of the records does not exist."""
    if folder == RECORDS:
        return UsageError(
            f"There are no records here: {Path.cwd()} has no folder {folder}.",
            advice=f"Make a record: paceline run -n 2 train.py; or name the folder: paceline {verb} --record DIR",
        )
    return UsageError(
        f"--record {folder}: there is no such folder.",
        advice=f"Name the folder of the records, which is mostly called {RECORDS}.",
    )


def mod_values(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """What a shell offers for a script: nothing, so that it offers files. But bash takes `--mod precision=b` apart into
    `precision`, `=` and `b`, and the parser takes `=` for the script; then, the values of that mod."""
    typed = [str(mod) for mod in context.params.get("mod") or ()]
    script = context.params.get("script")
    if not typed or "=" in typed[-1] or (incomplete and script != "=") or script not in (None, "="):
        return []
    if script is None and not _completes_value():
        return []
    return [(mod.partition("=")[2], about) for mod, about in mods.complete(f"{typed[-1]}={incomplete}")]


def _completes_value() -> bool:
    """Whether bash completes a word that ends with `=`: the `=` is then a word of its own, and the last one."""
    env = all_variables()
    words, at = env.get("COMP_WORDS", "").split(), env.get("COMP_CWORD", "")
    return at.isdecimal() and int(at) < len(words) and words[int(at)] == "="


Script = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT",
        help="Training script, or with -m the name of a module.",
        show_default=False,
        autocompletion=mod_values,
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ARGUMENTS]...",
        help="The script's own arguments.",
        show_default=False,
        autocompletion=mod_values,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--workers",
        metavar="N",
        help="Number of workers.",
        show_default="one per GPU",
        rich_help_panel=HOW,
    ),
]
LaunchAs = Annotated[
    Launcher | None,
    typer.Option(
        "--as",
        help="Run a script that distributes itself, with this launcher's environment variables. Paceline splits "
        "nothing.",
        show_default=False,
        rich_help_panel=HOW,
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="Set an environment variable of the workers. May be repeated.",
        show_default=False,
        rich_help_panel=HOW,
    ),
]
Module = Annotated[bool, typer.Option("-m", help="Run SCRIPT as a module: -m package.train.")]
BatchDim = Annotated[
    int,
    typer.Option("--batch-dim", metavar="N", min=0, help="Tensor dimension that counts samples.", rich_help_panel=HOW),
]
GatherBelow = Annotated[
    int,
    typer.Option(
        "--gather-below",
        metavar="BYTES",
        min=0,
        help="Gather a model's outputs below this size at once; larger ones stay sharded. Numbers do not depend on it.",
        rich_help_panel=HOW,
    ),
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
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="CPU threads per worker.",
        show_default="an equal share of the cores",
        rich_help_panel=HOW,
    ),
]
Strategy = Annotated[
    str,
    typer.Option(
        "--strategy",
        metavar="NAME[(ARGUMENT=VALUE,…)]",
        help="How the workers share the work.",
        autocompletion=strategies.complete,
        rich_help_panel=HOW,
    ),
]
BackendOption = Annotated[
    Backend, typer.Option("--backend", help="Communication backend of the workers.", rich_help_panel=HOW)
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Initial random seed; the script may set its own.",
        show_default="a new seed, kept in the record",
        rich_help_panel=HOW,
    ),
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Allow more workers than cores or GPUs.", rich_help_panel=HOW)
]
StallWarning = Annotated[
    float,
    typer.Option(
        "--stall-warning",
        metavar="SECONDS",
        min=0.1,
        help="Waiting time before the missing workers are named.",
        rich_help_panel=STALLS,
    ),
]
StallAbort = Annotated[
    float | None,
    typer.Option(
        "--stall-abort",
        metavar="SECONDS",
        min=0.0,
        help="Waiting time before a stalled run is ended; 0: never.",
        show_default="1800; 7200 before the first step",
        rich_help_panel=STALLS,
    ),
]
RecordParent = Annotated[
    Path, typer.Option("--record", metavar="DIR", help="Folder of the records.", rich_help_panel=OUTPUT)
]
ShareRecord = Annotated[
    bool,
    typer.Option("--share-record", help="Let other accounts read the record.", rich_help_panel=OUTPUT),
]
LABELS = "Labels of the record"
RecordName = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="TEXT", help="Name of the record, for people.", show_default=False, rich_help_panel=LABELS
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="Tag of the record; `paceline runs --tag` finds it. May be repeated.",
        show_default=False,
        rich_help_panel=LABELS,
    ),
]
Note = Annotated[
    str | None,
    typer.Option("--note", metavar="TEXT", help="Note about the record.", show_default=False, rich_help_panel=LABELS),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        help="Folder for TensorBoard logs: loss, samples/s and the parts of each step.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print only one JSON document on standard output.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Show no progress and no tables, only problems.", rich_help_panel=OUTPUT)
]

RECORDS = Path("paceline-runs")


def own_arguments(arguments: Sequence[str] | None) -> tuple[str, ...]:
    """The script's arguments, without a `--` directly after the script."""
    given = tuple(arguments or ())
    return given[1:] if given[:1] == ("--",) else given


def seed_or_new(seed: int | None) -> int:
    """The given seed, or a random one: a script without a seed differs from run to run, as under plain Python."""
    return secrets.randbelow(2**31) if seed is None else seed


def default_workers(strategy: str, asked_mods: Sequence[str] = ()) -> int:
    """The number from a mod `workers=N`, or that of the strategy; else one worker per GPU, at least one."""
    said = [mod.removeprefix("workers=") for mod in asked_mods if mod.startswith("workers=")]
    if said:
        return int(said[0])
    asked = strategies.parse(strategy)
    return asked.workers or max(1, len(discover().gpus) // asked.multiple) * asked.multiple


Mods = Annotated[
    list[str] | None,
    typer.Option(
        "--mod",
        metavar="NAME[=VALUE]",
        help="Apply a mod; `paceline mods` lists them. May be repeated.",
        show_default=False,
        autocompletion=mods.complete,
        rich_help_panel=HOW,
    ),
]
