"""`paceline runs`: lists, filters, labels and deletes records."""

from __future__ import annotations

import difflib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from paceline.cli.options import RECORDS, JsonOptions, RecordOptions, no_records
from paceline.cli.session import Session
from paceline.cli.terminal import grid, results, stderr
from paceline.cli.verb import group, taking_options, verb
from paceline.errors import RecordError, UsageError
from paceline.options import OUTPUT, again, argument, option, read_size
from paceline.record.about.labels import Labels, checked_name, checked_note, checked_tags, read_labels, write_labels
from paceline.record.about.origin import read_origin
from paceline.record.about.removal import remove, size_on_disk
from paceline.settings import all_variables
from paceline.units import count, rate, seconds, size

if TYPE_CHECKING:
    from paceline.view.records.choosing import RecordFilter
    from paceline.view.records.library import Library, RecordEntry

WHICH, WHAT = "Which records", "What is deleted"
STATES = ("running", "succeeded", "failed", "stopped", "damaged")
_DAYS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def read_age(text: str, option: str) -> float:
    """`90s`, `12h`, `30d` or `2w` as seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is None:
        raise UsageError(f"{option} {text}: not an age.", advice=f"Type it like this: {option} 12h, or {option} 30d")
    return float(found[1]) * _DAYS[found[2]]


def read_limit(text: str, option: str) -> int:
    """A size, or nothing at all."""
    return 0 if text == "0" else read_size(text, option)


@dataclass(frozen=True, kw_only=True)
class FilterOptions(JsonOptions):
    """How records are chosen."""

    PANEL: ClassVar = WHICH
    status: tuple[str, ...] = option((), f"One of {', '.join(STATES)}. May be repeated.", "STATUS", usual="all")
    verb: tuple[str, ...] = option((), "The verb that made them: run, tune. May be repeated.", "VERB", usual="all")
    script: str = option("", "Part of the script's path, or a pattern: '*cnn*'.", "TEXT", usual="all")
    tag: tuple[str, ...] = option((), "With this tag. May be repeated.", "TAG", usual="all")
    text: str = option("", "Text in the record's name, note or command.", "TEXT", usual="all")
    older: float | None = option(None, "Older than: 12h, 30d, 2w.", "AGE", reads=read_age)
    newer: float | None = option(None, "Newer than: 12h, 30d, 2w.", "AGE", reads=read_age)

    def filter(self) -> RecordFilter:
        """UsageError if a status is none."""
        from paceline.view.records.choosing import RecordFilter  # imports polars, which takes longer than most verbs

        for each in self.status:
            if each not in STATES:
                near = difflib.get_close_matches(each, STATES, n=1)
                raise UsageError(
                    f"--status {each}: not a status.",
                    advice=f"Type: --status {near[0]}" if near else f"Type one of: {', '.join(STATES)}",
                )
        return RecordFilter(
            status=self.status,
            verbs=self.verb,
            script=self.script,
            tags=self.tag,
            text=self.text,
            older=self.older,
            newer=self.newer,
        )


@dataclass(frozen=True, kw_only=True)
class ListOptions(FilterOptions):
    PANEL: ClassVar = ""
    limit: int | None = option(None, "Show the newest N.", "N", least=1, usual="all of them")
    record: Path = again(RecordOptions, "record")


@dataclass(frozen=True, kw_only=True)
class WhereOptions(JsonOptions):
    """Of the verbs below `runs`: the folder of the records may also be named before them."""

    record: Path | None = option(None, "Folder of the records.", "DIR", usual=str(RECORDS), panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class OneOptions(WhereOptions):
    PANEL: ClassVar = ""
    which: str = argument("RECORD", "Folder, part of its name, the record's name, or: last")


@dataclass(frozen=True, kw_only=True)
class TextOptions(OneOptions):
    PANEL: ClassVar = ""
    text: str = argument("TEXT", "The text; '' removes it.")


@dataclass(frozen=True, kw_only=True)
class TagOptions(OneOptions):
    PANEL: ClassVar = ""
    tags: tuple[str, ...] = argument("TAG...", "Tags to add.")
    remove: bool = option(False, "Remove these tags instead.")


@dataclass(frozen=True, kw_only=True)
class DeletionOptions(WhereOptions):
    PANEL: ClassVar = WHAT
    dry_run: bool = option(False, "Show what would be deleted, and delete nothing.")
    yes: bool = option(False, "Delete without asking.", names="--yes -y")


@dataclass(frozen=True, kw_only=True)
class DeleteOptions(DeletionOptions):
    which: tuple[str, ...] = argument("RECORD...", "Folders, parts of their names, names, or: last")


@dataclass(frozen=True, kw_only=True)
class PruneOptions(DeletionOptions, FilterOptions):
    PANEL: ClassVar = WHAT
    keep: int | None = option(None, "All but the newest N.", "N", least=0)
    to_size: int | None = option(
        None, "The oldest, until the chosen records take at most this: 2GB.", "SIZE", reads=read_limit
    )
    larger: int | None = option(None, "Those larger than this: 100MB.", "SIZE", reads=read_size)


def runs(session: Session, asked: ListOptions) -> None:
    if session.context.invoked_subcommand is not None:
        session.context.meta["records"] = asked.record
        return
    library = _library(asked.record)
    from paceline.view.records.choosing import chosen

    found = chosen(library.entries(), asked.filter())
    shown = found[: asked.limit]
    sizes = {entry.name: size_on_disk(library.root / entry.name) for entry in shown}
    if session.json:
        documents = [_document(library, entry, sizes[entry.name]) for entry in shown]
        session.print_document({"records": str(library.root), "total": len(found), "runs": documents})
        return
    console = results()
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


app = group(
    "paceline runs",
    "paceline runs --status failed --newer 2d",
    "paceline runs tag last baseline",
    "paceline runs prune --older 30d --keep 20 --dry-run",
    invoke_without_command=True,
    callback=taking_options(runs)[0],
)


@verb(app, "paceline runs show last")
def show(session: Session, asked: OneOptions) -> None:
    """Shows what made a record: command, folder, code, packages, variables; its labels and its figures."""
    library, [entry] = _found(session, asked, [asked.which])
    folder = library.root / entry.name
    session.record = folder
    if session.json:
        told = _document(library, entry, size_on_disk(folder))
        session.print_document({"run": told, "origin": msgspec.to_builtins(read_origin(folder))})
        return
    show_record(results(), folder, entry, size_on_disk(folder))


@verb(app, "paceline runs name last 'wide model'")
def name(session: Session, asked: TextOptions) -> None:
    """Gives a record a name."""
    _label(session, asked, name=checked_name(asked.text))


@verb(app, "paceline runs tag last baseline", "paceline runs tag --remove last baseline")
def tag(session: Session, asked: TagOptions) -> None:
    """Adds tags to a record, or removes them."""
    changed = checked_tags(asked.tags)
    library, [entry] = _found(session, asked, [asked.which])
    before = read_labels(library.root / entry.name).tags
    after = [each for each in before if each not in changed] if asked.remove else [*before, *changed]
    _label(session, asked, tags=checked_tags(after))


@verb(app, "paceline runs note last 'diverged after the warm-up'")
def note(session: Session, asked: TextOptions) -> None:
    """Gives a record a note."""
    _label(session, asked, note=checked_note(asked.text))


@verb(app, "paceline runs delete 2026-11-15T10-22-31-train")
def delete(session: Session, asked: DeleteOptions) -> None:
    """Deletes records. A record in use is refused."""
    library, entries = _found(session, asked, asked.which)
    from paceline.view.records.choosing import is_in_use

    for entry in entries:
        if is_in_use(library, entry):
            raise UsageError(
                f"{entry.name} is running: it cannot be deleted.", advice="Stop the run first, or wait until it ends."
            )
    _delete(session, library, [(each, size_on_disk(library.root / each.name)) for each in entries], asked)


@verb(app, "paceline runs prune --older 30d --dry-run", "paceline runs prune --status failed --keep 5 --yes")
def prune(session: Session, asked: PruneOptions) -> None:
    """Deletes the records that the options choose. Records in use, and records with a tag or a name that the options do
    not mention, are kept."""
    wanted = asked.filter()
    if all(each is None for each in (asked.keep, asked.to_size, asked.larger, asked.older)) and not any(
        (asked.status, asked.verb, asked.script, asked.tag, asked.text)
    ):
        raise UsageError(
            "`paceline runs prune` says nothing about which records to delete.",
            advice="Type one of: --older 30d, --keep 20, --to-size 2GB, --larger 100MB, --status failed",
        )
    library = _library(asked.record or session.context.meta["records"])
    from paceline.view.records.choosing import chosen, to_prune

    entries = chosen(library.entries(), wanted)
    if not (asked.tag or asked.text):
        entries = [entry for entry in entries if not (entry.labels.tags or entry.labels.name)]
    limits = {"keep": asked.keep, "to_size": asked.to_size, "larger": asked.larger}
    _delete(session, library, to_prune(library, entries, **limits), asked)


def _delete(
    session: Session, library: Library, chosen: Sequence[tuple[RecordEntry, int]], asked: DeletionOptions
) -> None:
    console = results(json=session.json)
    names, total = [entry.name for entry, _ in chosen], sum(taken for _, taken in chosen)
    for entry, taken in chosen:
        console.print(f"{entry.name}  {entry.state}  {size(taken)}", soft_wrap=True)
    what = f"{count(len(names), 'record')}, {size(total)}"
    if names and not (asked.yes or asked.dry_run):
        if not sys.stdin.isatty():
            raise UsageError(
                f"{what} would be deleted, and there is no terminal to ask on.",
                advice="Type --yes to delete, or --dry-run to look.",
            )
        if not typer.confirm(f"Delete {what}?", err=session.json):
            raise typer.Exit(1)
    failed = []
    for entry, _ in () if asked.dry_run else chosen:
        try:
            remove(library.root / entry.name)
        except RecordError as error:
            failed.append(entry.name)
            stderr().print(f"paceline: {error.message} {error.advice}".rstrip(), style="red", soft_wrap=True)
    gone = [name for name in names if name not in failed]
    console.print(f"{'would be deleted' if asked.dry_run else 'deleted'}: {count(len(gone), 'record')}, {size(total)}")
    if session.json:
        session.print_document(
            {"deleted": [] if asked.dry_run else gone, "chosen": names, "bytes": total, "failed": failed}
        )
    if failed:
        raise typer.Exit(1)


def _label(session: Session, asked: OneOptions, **changes: Any) -> None:
    library, [entry] = _found(session, asked, [asked.which])
    folder = session.record = library.root / entry.name
    labels = msgspec.structs.replace(read_labels(folder), **changes)
    write_labels(folder, labels)
    if session.json:
        session.print_document(msgspec.to_builtins(labels))
    else:
        show_labels(results(), entry.name, labels)


def _document(library: Library, entry: RecordEntry, taken: int) -> dict[str, Any]:
    from paceline.reports.figure_text import figures_document  # imports polars

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


def _library(records: Path) -> Library:
    from paceline.view.records.library import Library

    if not records.is_dir():
        raise no_records(records, "runs")
    return Library(records)


def _found(session: Session, asked: WhereOptions, which: Sequence[str]) -> tuple[Library, list[RecordEntry]]:
    """The records that were typed, each once."""
    from paceline.view.records.choosing import find

    library = _library(asked.record or session.context.meta["records"])
    found = {entry.name: entry for entry in (find(library, each) for each in which)}
    return library, list(found.values())


# -- tables ------------------------------------------------------------------------------------------------------------

# Columns, and the least width of the terminal in which each is shown.
COLUMNS = {"record": 0, "verb": 0, "status": 0, "workers": 110, "samples/s": 60, "a step": 80, "took": 100, "size": 70}


def runs_table(entries: Sequence[RecordEntry], sizes: Mapping[str, int], width: int) -> Table:
    """One line per record, and a second one with its name and tags if it has any. A narrow terminal has fewer
    columns."""
    columns = [title for title in COLUMNS if width >= COLUMNS[title]]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in columns:
        right = title not in ("record", "verb", "status")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for entry in entries:
        figures = entry.figures
        cells = {
            "record": entry.name,
            "verb": entry.verb,
            "status": entry.state,
            "workers": str(entry.workers or ""),
            "samples/s": rate(figures.samples_per_s) if figures.samples_per_s else "",
            "a step": seconds(figures.step_time) if figures.step_time else "",
            "took": seconds(entry.seconds) if entry.seconds else "",
            "size": size(sizes[entry.name]),
        }
        style = {"failed": "red", "running": "green"}.get(entry.state, "")
        table.add_row(*(cells[title] for title in columns), style=style)
        if entry.labels:
            table.add_row(f"  {label_words(entry.labels) or entry.labels.note}", style="dim")
    return table


def label_words(labels: Labels) -> str:
    return " ".join([*([labels.name] if labels.name else []), *(f"#{tag}" for tag in labels.tags)])


def show_labels(console: Console, record: str, labels: Labels) -> None:
    console.print(f"{record}: {label_words(labels) or 'no name, no tags'}", soft_wrap=True)
    if labels.note:
        console.print(labels.note, soft_wrap=True)


def show_record(console: Console, folder: Path, entry: RecordEntry, taken: int) -> None:
    """What made a record, its labels and its figures."""
    from paceline.reports.figure_text import slowest

    origin, figures = read_origin(folder), entry.figures
    began = "" if entry.started is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.started))
    facts = {
        "record": str(folder),
        "name": entry.labels.name,
        "tags": " ".join(entry.labels.tags),
        "note": entry.labels.note,
        "command": entry.command or f"(not recorded) {entry.verb} {PurePath(entry.script).name}",
        "status": entry.state,
        "began": began,
        "took": seconds(entry.seconds) if entry.seconds else "",
        "size": size(taken),
        "samples/s": rate(figures.samples_per_s) if figures.samples_per_s else "",
        "a step": seconds(figures.step_time) if figures.step_time else "",
        "spread": "".join(each.said.replace("\n", " ") for each in slowest(figures)),
    }
    if origin is not None:
        facts["folder"] = origin.directory
        facts["defaults"] = "\n".join(f"{words}: {source}" for words, source in origin.defaults.items())
        facts["python"] = origin.python
        if (tree := origin.git) is not None:
            branch = f" ({tree.branch})" if tree.branch else ""
            dirty = f", {count(tree.changed, 'changed file')}: {folder / tree.diff}" if tree.diff else ""
            facts["git"] = f"{tree.commit or 'no commit yet'}{branch}{dirty or (', changed' if tree.dirty else '')}"
        facts["packages"] = " ".join(f"{name}=={version}" for name, version in origin.packages.items())
        facts |= origin.environment
    table = grid()
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for title, value in facts.items():
        if value:
            table.add_row(title, value)
    console.print(table)
