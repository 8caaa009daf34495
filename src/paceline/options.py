"""How an option is declared: once, as a field of a frozen dataclass, with its default, its help and who may use it.

`cli/verb.py` makes the command line of these fields, and with it the `PACELINE_…` variables and the keys of
paceline.toml. `repeated` writes the options of a run into a command that Paceline prints, and `excluded` finds those
that another option excludes. Nothing here knows a parser: the settings of a worker are declared with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

from paceline.errors import UsageError
from paceline.units import parse_size, typed_size

# The groups in which help shows options.
HOW = "Run options"
HOSTS = "Several hosts"
STALLS = "Stalled workers"
LASTING = "Runs that outlast failures"
LABELS = "Labels of the record"
OUTPUT = "Output"

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is declared beside the default and the type of a field."""

    help: str
    value: str = ""  # stands for the value in help: N, FILE
    names: tuple[str, ...] = ()  # as typed; the last one is the name in messages
    panel: str | None = None  # the group in which help shows it; by default the `PANEL` of its class, or `HOW`
    usual: str = ""  # what happens by default, in words: then nothing typed leaves the field's default
    least: float | None = None
    most: float | None = None
    verbs: tuple[str, ...] = ()  # who may use it; none: every verb that takes the field's class
    rare: bool = False  # only --help-all shows it
    argument: bool = False  # a word without a name, by its place
    reads: Callable[[str, str], Any] | None = None  # makes the field's value of what was typed after which option
    typed: Any = None  # the default as it would be typed, where `reads` makes the field's own of it
    complete: Callable[..., Any] | None = None  # what a shell offers
    repeated: bool = False  # in commands that Paceline prints for the same script
    excludes: tuple[str, ...] = ()  # options that it cannot stand beside


def option(default: Any, help: str, value: str = "", *, names: str = "", **more: Any) -> Any:
    """A field that is an option. `names`: as typed, if it is not called as the field; the others: see `Option`."""
    if isinstance(default, str) and "reads" in more:
        more |= {"typed": default}
        default = more["reads"](default, "")
    return field(
        default=default,
        metadata={"option": Option(help=help, value=value, names=tuple(names.split()), **more)},
    )


def argument(value: str, help: str, *, default: Any = MISSING, **more: Any) -> Any:
    """A field that is typed by its place. Without a default it must be typed."""
    about = Option(help=help, value=value, argument=True, **more)
    return field(default=default, metadata={"option": about})


def again(kind: type, name: str, **changed: Any) -> Any:
    """The option of another class, as a field of one more. `changed`: its `panel`, where that differs."""
    known = next(each for each in fields(kind) if each.name == name)
    return field(default=known.default, metadata={"option": replace(known.metadata["option"], **changed)})


def declared(kind: type) -> Iterator[tuple[Field[Any], Option]]:
    """The options among the fields of a class."""
    return ((each, each.metadata["option"]) for each in fields(kind) if "option" in each.metadata)


def names_of(field: Field[Any]) -> tuple[str, ...]:
    """`-n` and `--workers`; none for an argument."""
    about: Option = field.metadata["option"]
    return () if about.argument else about.names or (f"--{field.name.replace('_', '-')}",)


def repeated(kind: type, values: Mapping[str, Any], verb: str) -> list[str]:
    """The options of a run as typed, for the command line of a verb that runs the same script: those that differ from
    the defaults and change how the script is computed."""
    typed: list[str] = []
    for each, about in declared(kind):
        value = values.get(each.name, each.default)
        if about.repeated and verb in (about.verbs or (verb,)) and value not in (each.default, None, []):
            for one in value if isinstance(value, list | tuple) else [value]:
                typed += [names_of(each)[-1], typed_size(one) if about.reads is read_size else str(one)]
    return typed


def excluded(settings: Any, other: str) -> list[str]:
    """The options among these settings that cannot stand beside the other one."""
    return [
        names_of(each)[-1]
        for each, about in declared(type(settings))
        if other in about.excludes and getattr(settings, each.name) != each.default
    ]


def read_time(text: str, option: str) -> float:
    """`1h30m`, `5m`, `90s` or `90` as seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or seconds <= 0:
        raise UsageError(f"{option} {text}: not a time.", advice=f"Type it like this: {option} 90s, or {option} 5m")
    return seconds


def read_size(text: str, option: str) -> int:
    """`2GB` or `512MiB` in bytes, with 1024 bytes per kilobyte."""
    size = parse_size(text)
    if not size:
        raise UsageError(f"{option} {text}: not a size.", advice=f"Type it like this: {option} 2GB")
    return size
