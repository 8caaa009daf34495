"""The `paceline` program: turns every error into a message and an exit code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from paceline import __version__
from paceline.cli.defaults import find_defaults, with_defaults
from paceline.cli.help import program
from paceline.cli.mistakes import Mistyped, explained
from paceline.cli.session import Session
from paceline.errors import PacelineError, RecordError, UsageError
from paceline.launch.interrupts import exit_code_of, held_off, raised_on_sigterm

if TYPE_CHECKING:
    from paceline.launch import Zygote

MISTYPED = 2
INTERRUPTED = 130  # the exit code that a shell reports for a program ended by SIGINT

# What `paceline --help` says of each verb; its module in this package has it as `app`.
VERBS = {
    "demo": "Shows Paceline here in three minutes: same numbers on workers, a short tune, what to type next.",
    "run": "Runs an unmodified script on N workers, with the same numbers.",
    "submit": "Writes a job for a scheduler, and submits it.",
    "profile": "Traces a few steps and shows where their time goes: op by op, on host and device, and waiting lines.",
    "scale": "Measures throughput, speed-up and efficiency by number of workers, and checks that the numbers stay the "
    "same.",
    "sweep": "Measures throughput by batch size, up to the largest batch that fits, and finds the knee of the curve.",
    "fit": "Finds changes with which a script fits into memory, the numbers kept, and shows what holds the memory.",
    "tune": "Finds the mods that make a script faster, measures the gain of each, and checks the losses.",
    "converge": "Compares the accuracy of large-batch techniques side by side. Emulates N workers on this machine.",
    "plan": "Predicts steps, efficiency and price on a cluster that is not there, from a record of this machine.",
    "topo": "Shows the machine: devices, links, NUMA nodes and NICs. With --choose, also which GPUs to use.",
    "bandwidth": "Measures bandwidth and latency between workers, between GPUs, and of each collective; flags slow "
    "links.",
    "data": "Packs images and datasets into TFRecord files, and checks such files.",
    "checkpoint": "Shows, verifies and converts checkpoints of paceline.save.",
    "view": "Shows records in a browser: dashboards, ops, kernels, timelines, results. Works offline.",
    "runs": "Lists records, newest first; names, tags, notes, deletes and prunes them.",
    "mods": "Lists the mods: what each mod does, and whether the script's numbers stay the same.",
    "doctor": "Checks whether this machine can run workers, and prints what to type if a check fails.",
}


class Verbs(MutableMapping[str, Any]):
    """The commands of the program by name, read when they are asked for: that takes longer than most verbs."""

    def __init__(self) -> None:
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in VERBS:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = typer.main.get_command(import_module(f"paceline.cli.{name}").app)
            self._read[name].help = VERBS[name]
        return self._read[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._read[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("verbs cannot be removed")

    def __contains__(self, name: object) -> bool:
        return name in VERBS

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class Program(program("paceline run -n 4 train.py --epochs 3", "paceline scale -n 1,2,4 train.py --epochs 1")):  # type: ignore[misc]
    """`paceline` itself."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.commands: MutableMapping[str, Any] = Verbs()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        verbs = self.commands
        self.commands = {name: TyperCommand(name, help=about) for name, about in VERBS.items()}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = verbs


app = typer.Typer(
    name="paceline",
    cls=Program,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback(
    help="Runs an unmodified single-process PyTorch training script on any number of workers, with the same numbers, "
    "and measures how well the script scales."
)
def paceline(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Holds the options of the program itself; every verb is a subcommand."""


@functools.cache
def commands() -> Any:
    """The program as Typer has read it; each verb is read when it is asked for, once a process."""
    return typer.main.get_command(app)


def command_line(
    arguments: Sequence[str],
    zygote: Zygote | None = None,
    *,
    ended: Callable[[Session], None] | None = None,
    command: Sequence[str] = (),
) -> int:
    """Runs one verb and returns the exit code. Every error ends here: a user's mistake prints two lines, a bug in
    paceline prints its traceback. With --json, both also print a JSON document. `ended` is called after the verb.
    `command`: what was typed, if it was not `paceline` and these arguments."""
    program = commands()
    session = Session(zygote=zygote, verb=next(iter(arguments), ""), typed=tuple(arguments))
    session.command = tuple(command) or ("paceline", *arguments)
    words = list(arguments)
    try:
        with raised_on_sigterm(), _listening(arguments):
            if not command:  # another program has its own defaults
                words = _with_defaults(program, session)
            code = program.main(args=words, prog_name="paceline", standalone_mode=False, obj=session)
        return int(code or 0)
    except Mistyped as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its help is on the terminal already
            return MISTYPED
        session.json = session.json or _asked_for_json(arguments)
        return _tell(session, explained(error, words, program), MISTYPED)
    except PacelineError as error:
        return _tell(session, error, MISTYPED if isinstance(error, UsageError) else 1)
    except (KeyboardInterrupt, typer.Abort) as error:  # typer turns a KeyboardInterrupt into an Abort
        by = error if isinstance(error, KeyboardInterrupt) else error.__cause__
        code = exit_code_of(by) if isinstance(by, KeyboardInterrupt) else INTERRUPTED
        return _tell(session, PacelineError("interrupted"), code)
    except BrokenPipeError:
        # The reader of our standard output is gone. Without this line, Python would report that again when it flushes
        # at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        traceback.print_exc()
        where = f" The run's record: {session.record}." if session.record else ""
        bug = PacelineError(
            f"this is a bug in paceline: {type(error).__name__}: {error}",
            advice=f"Please report it with the lines above.{where}",
        )
        return _tell(session, bug, 1, kind="Bug")
    finally:
        if ended is not None:
            ended(session)
        session.leave()
        if session.zygote is not None:
            with held_off():
                session.zygote.close()


def _with_defaults(program: Any, session: Session) -> list[str]:
    """The command line with the defaults of the project. Help and `doctor` work with wrong ones, too."""
    typed = list(session.typed)
    if _asks_for_help(typed):
        return typed
    from paceline.settings import all_variables  # slow to import, and help needs no defaults

    try:
        defaults = find_defaults(program, all_variables(), Path.cwd())
        words, used = with_defaults(program, typed, defaults)
    except FileNotFoundError:  # the current folder is gone
        return typed
    except UsageError:
        if session.verb == "doctor" or {"-h", "--help", "--version"} & {*typed[:3]}:
            return typed
        session.json = _asked_for_json(typed)
        raise
    for text in defaults.ignored:
        print(f"paceline: {text}", file=sys.stderr)
    session.defaults = tuple(used)
    return words


def _asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether this is about the program, not about a verb."""
    return not arguments or arguments[0].startswith("-")


def _listening(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Warns where a record can no longer be written."""
    if _asks_for_help(arguments):
        return nullcontext()
    from paceline.record import stopping  # slow to import, and help makes no record

    return stopping.listening(_warn)


def _asked_for_json(arguments: Sequence[str]) -> bool:
    """For a command line that could not be parsed: whether it has a --json before the script's own arguments."""
    for argument in arguments:
        if argument == "--" or argument.endswith(".py"):
            return False
        if argument == "--json":
            return True
    return False


def _warn(error: RecordError) -> None:
    """A record can no longer be written: the verb goes on without it."""
    print(f"paceline: {error.message} Recording stops here.", file=sys.stderr)
    if error.advice:
        print(f"  {error.advice}", file=sys.stderr)


def _tell(session: Session, error: PacelineError, code: int, *, kind: str = "") -> int:
    sys.stdout.flush()
    for default in session.defaults:
        if f"--{default.key}" in error.message.replace("=", " ").split():
            error.advice = f"{error.advice} (--{default.key} comes from {default.source}.)".strip()
    begun = session.record is not None and not kind and code < INTERRUPTED
    print(f"{'failed' if begun else 'paceline'}: {error.message}", file=sys.stderr)
    if error.advice:
        print(f"  {error.advice}", file=sys.stderr)
    if begun and "--quiet" not in session.typed:
        print(f"record: {session.record}", file=sys.stderr)
    if session.json:
        told = {"type": kind or type(error).__name__, "message": error.message, "advice": error.advice}
        session.print_document({"error": told})
    return code
