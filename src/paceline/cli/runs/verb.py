"""The subcommands of `paceline runs`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from paceline.cli import options
from paceline.cli.help import program, verb
from paceline.cli.runs import filters
from paceline.cli.series import parse_bytes
from paceline.cli.session import Session
from paceline.errors import RecordError, UsageError
from paceline.record.about.labels import checked_name, checked_note, checked_tags, read_labels, write_labels
from paceline.record.about.origin import read_origin
from paceline.record.about.removal import remove, size_on_disk
from paceline.settings import all_variables
from paceline.units import count, size

if TYPE_CHECKING:
    from paceline.view.records.library import Library, RecordEntry

WHAT = "What is deleted"
Which = Annotated[
    str,
    typer.Argument(metavar="RECORD", help="Folder, part of its name, the record's name, or: last", show_default=False),
]
Several = Annotated[
    list[str],
    typer.Argument(metavar="RECORD...", help="Folders, parts of their names, names, or: last", show_default=False),
]
Tags = Annotated[list[str], typer.Argument(metavar="TAG...", help="Tags to add.", show_default=False)]
Untag = Annotated[bool, typer.Option("--remove", help="Remove these tags instead.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="The text; '' removes it.", show_default=False)]
Most = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Show the newest N.", show_default="all of them")
]
Where = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="DIR",
        help="Folder of the records.",
        show_default=str(options.RECORDS),
        rich_help_panel=options.OUTPUT,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.", rich_help_panel=WHAT)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.", rich_help_panel=WHAT)
]
Keep = Annotated[
    int | None,
    typer.Option("--keep", metavar="N", min=0, help="All but the newest N.", show_default=False, rich_help_panel=WHAT),
]
ToSize = Annotated[
    str | None,
    typer.Option(
        "--to-size",
        metavar="SIZE",
        help="The oldest, until the chosen records take at most this: 2GB.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Larger = Annotated[
    str | None,
    typer.Option(
        "--larger", metavar="SIZE", help="Those larger than this: 100MB.", show_default=False, rich_help_panel=WHAT
    ),
]


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    runs = typer.Typer(
        cls=program(
            "paceline runs",
            "paceline runs --status failed --newer 2d",
            "paceline runs tag last baseline",
            "paceline runs prune --older 30d --keep 20 --dry-run",
        ),
        invoke_without_command=True,
        callback=list_them,
    )
    runs.command("show", cls=verb("paceline runs show last"))(show)
    runs.command("name", cls=verb("paceline runs name last 'wide model'"))(name)
    runs.command("tag", cls=verb("paceline runs tag last baseline", "paceline runs tag --remove last baseline"))(tag)
    runs.command("note", cls=verb("paceline runs note last 'diverged after the warm-up'"))(note)
    runs.command("delete", cls=verb("paceline runs delete 2026-11-15T10-22-31-train"))(delete)
    runs.command(
        "prune",
        cls=verb("paceline runs prune --older 30d --dry-run", "paceline runs prune --status failed --keep 5 --yes"),
    )(prune)
    app.add_typer(runs, name="runs")


def list_them(
    context: typer.Context,
    status: filters.Status = None,
    verb: filters.Verb = None,
    script: filters.Script = "",
    tag: filters.Tag = None,
    text: filters.Text = "",
    older: filters.Older = None,
    newer: filters.Newer = None,
    limit: Most = None,
    record: options.RecordParent = options.RECORDS,
    json: options.Json = False,
) -> None:
    if context.invoked_subcommand is not None:
        context.meta["records"] = record
        return
    session = _session(context, "runs", json)
    library = _library(record)
    from paceline.view.records.choosing import chosen

    asked = filters.filter_of(status, verb, script, tag, text, older, newer)
    found = chosen(library.entries(), asked)
    shown = found[:limit]
    sizes = {entry.name: size_on_disk(library.root / entry.name) for entry in shown}
    if json:
        documents = [_document(library, entry, sizes[entry.name]) for entry in shown]
        session.print_document({"records": str(library.root), "total": len(found), "runs": documents})
        return
    from paceline.cli.runs.table import runs_table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        # For another program nothing is cut, unless it asks for a width.
        console = Console(highlight=False, markup=False, width=None if "COLUMNS" in all_variables() else 200)
    if not shown:
        console.print(
            "No records match." if library.names() else "No records yet. Make one: paceline run -n 2 train.py"
        )
        return
    console.print(runs_table(shown, sizes, console.width))
    more = f" of {len(found)}" if len(found) > len(shown) else ""
    console.print(f"{count(len(shown), 'record')}{more}, {size(sum(sizes.values()))}: {library.root}", soft_wrap=True)


def show(context: typer.Context, which: Which, record: Where = None, json: options.Json = False) -> None:
    """Shows what made a record: command, folder, code, packages, variables; its labels and its figures."""
    session = _session(context, "runs show", json, record)
    library, [entry] = _found(context, [which])
    folder = library.root / entry.name
    session.record = folder
    if json:
        told = _document(library, entry, size_on_disk(folder))
        session.print_document({"run": told, "origin": msgspec.to_builtins(read_origin(folder))})
        return
    from paceline.cli.runs.table import show_record

    show_record(Console(highlight=False, markup=False), folder, entry, size_on_disk(folder))


def name(context: typer.Context, which: Which, text: Text, record: Where = None, json: options.Json = False) -> None:
    """Gives a record a name."""
    _label(context, "runs name", [which], json, record, name=checked_name(text))


def tag(
    context: typer.Context,
    which: Which,
    tags: Tags,
    remove_them: Untag = False,
    record: Where = None,
    json: options.Json = False,
) -> None:
    """Adds tags to a record, or removes them."""
    changed = checked_tags(tags)
    _session(context, "runs tag", json, record)
    library, [entry] = _found(context, [which])
    before = read_labels(library.root / entry.name).tags
    after = [each for each in before if each not in changed] if remove_them else [*before, *changed]
    _label(context, "runs tag", [which], json, record, tags=checked_tags(after))


def note(context: typer.Context, which: Which, text: Text, record: Where = None, json: options.Json = False) -> None:
    """Gives a record a note."""
    _label(context, "runs note", [which], json, record, note=checked_note(text))


def delete(
    context: typer.Context,
    which: Several,
    dry_run: DryRun = False,
    yes: Yes = False,
    record: Where = None,
    json: options.Json = False,
) -> None:
    """Deletes records. A record in use is refused."""
    session = _session(context, "runs delete", json, record)
    library, entries = _found(context, which)
    from paceline.view.records.choosing import is_in_use

    for entry in entries:
        if is_in_use(library, entry):
            raise UsageError(
                f"{entry.name} is running: it cannot be deleted.", advice="Stop the run first, or wait until it ends."
            )
    _delete(session, library, [(each, size_on_disk(library.root / each.name)) for each in entries], dry_run, yes)


def prune(
    context: typer.Context,
    status: filters.Status = None,
    verb: filters.Verb = None,
    script: filters.Script = "",
    tag: filters.Tag = None,
    text: filters.Text = "",
    older: filters.Older = None,
    newer: filters.Newer = None,
    keep: Keep = None,
    to_size: ToSize = None,
    larger: Larger = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    record: Where = None,
    json: options.Json = False,
) -> None:
    """Deletes the records that the options choose. Records in use, and records with a tag or a name that the options do
    not mention, are kept."""
    session = _session(context, "runs prune", json, record)
    asked = filters.filter_of(status, verb, script, tag, text, older, newer)
    least = (parse_bytes(to_size, "--to-size") if to_size is not None else None) if to_size != "0" else 0
    most = parse_bytes(larger, "--larger") if larger is not None else None
    if all(each is None for each in (keep, least, most, asked.older)) and not any(
        (asked.status, asked.verbs, asked.script, asked.tags, asked.text)
    ):
        raise UsageError(
            "`paceline runs prune` says nothing about which records to delete.",
            advice="Type one of: --older 30d, --keep 20, --to-size 2GB, --larger 100MB, --status failed",
        )
    library = _library(context.meta["records"])
    from paceline.view.records.choosing import chosen, to_prune

    entries = chosen(library.entries(), asked)
    if not (asked.tags or asked.text):
        entries = [entry for entry in entries if not (entry.labels.tags or entry.labels.name)]
    _delete(session, library, to_prune(library, entries, keep=keep, to_size=least, larger=most), dry_run, yes)


def _delete(
    session: Session, library: Library, chosen: Sequence[tuple[RecordEntry, int]], dry_run: bool, yes: bool
) -> None:
    console = Console(highlight=False, markup=False, stderr=session.json)
    names, total = [entry.name for entry, _ in chosen], sum(taken for _, taken in chosen)
    for entry, taken in chosen:
        console.print(f"{entry.name}  {entry.state}  {size(taken)}", soft_wrap=True)
    what = f"{count(len(names), 'record')}, {size(total)}"
    if names and not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UsageError(
                f"{what} would be deleted, and there is no terminal to ask on.",
                advice="Type --yes to delete, or --dry-run to look.",
            )
        if not typer.confirm(f"Delete {what}?", err=session.json):
            raise typer.Exit(1)
    failed = []
    for entry, _ in () if dry_run else chosen:
        try:
            remove(library.root / entry.name)
        except RecordError as error:
            failed.append(entry.name)
            Console(stderr=True, highlight=False, markup=False).print(
                f"paceline: {error.message} {error.advice}".rstrip(), style="red", soft_wrap=True
            )
    gone = [name for name in names if name not in failed]
    console.print(f"{'would be deleted' if dry_run else 'deleted'}: {count(len(gone), 'record')}, {size(total)}")
    if session.json:
        session.print_document({"deleted": [] if dry_run else gone, "chosen": names, "bytes": total, "failed": failed})
    if failed:
        raise typer.Exit(1)


def _label(
    context: typer.Context, verb: str, which: Sequence[str], json: bool, record: Path | None, **changes: Any
) -> None:
    session = _session(context, verb, json, record)
    library, [entry] = _found(context, which)
    folder = session.record = library.root / entry.name
    labels = msgspec.structs.replace(read_labels(folder), **changes)
    write_labels(folder, labels)
    if json:
        session.print_document(msgspec.to_builtins(labels))
    else:
        from paceline.cli.runs.table import show_labels

        show_labels(Console(highlight=False, markup=False), entry.name, labels)


def _document(library: Library, entry: RecordEntry, taken: int) -> dict[str, Any]:
    from paceline.reports.figure_text import figures_document

    return {
        "record": str(library.root / entry.name),
        "name": entry.labels.name,
        "tags": entry.labels.tags,
        "note": entry.labels.note,
        "command": entry.command,
        "verb": entry.verb,
        "script": entry.script,
        "status": entry.state,
        "started": entry.started,
        "seconds": entry.seconds,
        "workers": entry.workers,
        "mods": entry.mods,
        "steps": entry.steps,
        "bytes": taken,
        "problem": entry.problem,
        **figures_document(entry.figures),
    }


def _session(context: typer.Context, verb: str, json: bool, record: Path | None = None) -> Session:
    """`record`: the folder of the records, if it was named after the subcommand."""
    if record is not None:
        context.meta["records"] = record
    session = Session.of(context, json=json)
    session.verb = verb
    return session


def _library(records: Path) -> Library:
    from paceline.view.records.library import Library

    if not records.is_dir():
        raise options.no_records(records, "runs")
    return Library(records)


def _found(context: typer.Context, which: Sequence[str]) -> tuple[Library, list[RecordEntry]]:
    """The records that were typed, each once."""
    from paceline.view.records.choosing import find

    library = _library(context.meta["records"])
    found = {entry.name: entry for entry in (find(library, each) for each in which)}
    return library, list(found.values())
