"""The options by which `paceline runs` chooses records."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.view.records.choosing import RecordFilter

WHICH = "Which records"
STATES = ("running", "succeeded", "failed", "stopped", "damaged")
_DAYS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}

Status = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"One of {', '.join(STATES)}. May be repeated.",
        show_default="all",
        rich_help_panel=WHICH,
    ),
]
Verb = Annotated[
    list[str] | None,
    typer.Option(
        "--verb",
        metavar="VERB",
        help="The verb that made them: run, tune. May be repeated.",
        show_default="all",
        rich_help_panel=WHICH,
    ),
]
Script = Annotated[
    str,
    typer.Option(
        "--script",
        metavar="TEXT",
        help="Part of the script's path, or a pattern: '*cnn*'.",
        show_default="all",
        rich_help_panel=WHICH,
    ),
]
Tag = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="TAG", help="With this tag. May be repeated.", show_default="all", rich_help_panel=WHICH
    ),
]
Text = Annotated[
    str,
    typer.Option(
        "--text",
        metavar="TEXT",
        help="Text in the record's name, note or command.",
        show_default="all",
        rich_help_panel=WHICH,
    ),
]
Older = Annotated[
    str | None,
    typer.Option("--older", metavar="AGE", help="Older than: 12h, 30d, 2w.", show_default=False, rich_help_panel=WHICH),
]
Newer = Annotated[
    str | None,
    typer.Option("--newer", metavar="AGE", help="Newer than: 12h, 30d, 2w.", show_default=False, rich_help_panel=WHICH),
]


def filter_of(
    status: list[str] | None,
    verb: list[str] | None,
    script: str,
    tag: list[str] | None,
    text: str,
    older: str | None,
    newer: str | None,
) -> RecordFilter:
    """The filter as typed. UsageError if a status or an age is none."""
    from paceline.view.records.choosing import RecordFilter  # imports polars, which takes longer than most verbs

    for each in status or ():
        if each not in STATES:
            near = difflib.get_close_matches(each, STATES, n=1)
            raise UsageError(
                f"--status {each}: not a status.",
                advice=f"Type: --status {near[0]}" if near else f"Type one of: {', '.join(STATES)}",
            )
    return RecordFilter(
        status=tuple(status or ()),
        verbs=tuple(verb or ()),
        script=script,
        tags=tuple(tag or ()),
        text=text,
        older=parse_age(older, "--older"),
        newer=parse_age(newer, "--newer"),
    )


def parse_age(text: str | None, option: str) -> float | None:
    """`90s`, `12h`, `30d` or `2w` as seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is None:
        raise UsageError(f"{option} {text}: not an age.", advice=f"Type it like this: {option} 12h, or {option} 30d")
    return float(found[1]) * _DAYS[found[2]]
