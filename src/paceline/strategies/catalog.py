"""The catalog of strategies: each strategy's name, its arguments, what it does, and what becomes of the numbers.

This module does not import torch, so that the command line can list and check strategies. Each strategy is a class in a
file of its own.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.errors import UsageError

Value = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyEntry:
    """A strategy, as users type it: `name`, or `name(argument=value,…)`."""

    name: str
    home: str  # the file below strategies/ and the class in it
    summary: str
    numbers: Literal["same", "other"] = "same"
    lockstep: bool = True  # False: a worker other than rank 0 may fail, and the others go on
    # What becomes of an elastic run that loses a worker: the others do its work, or the run cannot be elastic.
    membership: Literal["shrink", "abort", "ignore"] = "abort"
    arguments: Mapping[str, Value | tuple[str, ...]] = field(default_factory=dict)  # defaults; a tuple: the choices
    workers: Callable[[Mapping[str, Value]], int | None] = lambda arguments: None  # how many it needs; None: any number
    multiple: Callable[[Mapping[str, Value]], int] = lambda arguments: 1  # of this number
    conflict: Callable[[Mapping[str, Value]], tuple[str, str]] = lambda arguments: ("", "")  # what, and what to type


def _of_server(given: Mapping[str, Value]) -> tuple[str, str]:
    if not given["servers"]:
        return "a run needs at least one server", "servers=1"
    if given["deal"] == "free" and not given["staleness"]:
        return "in a synchronous run every worker takes as many batches", "deal=every, or staleness=inf"
    if given["backup"] and given["staleness"]:
        return "only a synchronous run has backup workers", "staleness=0"
    return "", ""


def _beside_data(given: Mapping[str, Value]) -> int:
    """The workers of a mesh that have the same rows, or parts of one copy of the model."""
    return int(given["model"]) * int(given["shard"]) * int(given["pipe"])


def _of_mesh(given: Mapping[str, Value]) -> tuple[str, str]:
    if not given["shard"] or not given["model"] or not given["pipe"]:
        return (
            "each axis of a mesh has at least one worker",
            '--strategy "mesh(data=2,shard=2)" or "mesh(model=2,pipe=2)"',
        )
    return "", ""


CATALOG = {
    entry.name: entry
    for entry in (
        StrategyEntry(
            name="one",
            home="one:OneDevice",
            summary="everything on one device: the baseline of every comparison",
            workers=lambda arguments: 1,
        ),
        StrategyEntry(
            name="mirrored",
            home="mirrored:Mirrored",
            summary="every worker holds the whole model; gradients are averaged after every backward",
            membership="shrink",
        ),
        StrategyEntry(
            name="zero1",
            home="zero1:Zero1",
            summary="mirrored, with the optimizer's state divided among the workers",
        ),
        StrategyEntry(
            name="central",
            home="central:CentralStorage",
            summary="one update, in the host's memory, where the optimizer's state lives once",
        ),
        StrategyEntry(
            name="server",
            home="parameter_server:ParameterServer",
            summary="parameters on servers; each worker trains on its own batches, at its own pace",
            numbers="other",
            lockstep=False,
            membership="ignore",
            arguments={
                "staleness": 4.0,
                "servers": 1,
                "backup": 0,
                "correction": ("momentum", "rate", "none"),
                "deal": ("every", "free"),
                "write": 30.0,
            },
            conflict=_of_server,
        ),
        StrategyEntry(
            name="pipeline",
            home="pipeline:Pipeline",
            summary="each worker computes one stage of the model; micro-batches go through the stages",
            arguments={
                "stages": 2,
                "data": 0,
                "schedule": ("gpipe", "1f1b", "interleaved"),
                "chunks": 4,
                "parts": 2,
                "cut": ("parameters", "time"),
            },
            workers=lambda given: int(given["stages"]) * int(given["data"]) or None,
            multiple=lambda given: max(int(given["stages"]), 1),
        ),
        StrategyEntry(
            name="mesh",
            home="mesh.mesh:Mesh",
            summary="rows over the axes data and shard; parts of each layer over model (tensor parallelism), of the "
            "parameters over shard, stages of a pipeline over pipe; any product",
            arguments={"data": 0, "model": 1, "shard": 1, "pipe": 1, "layout": "", "dimensions": ""},
            workers=lambda given: int(given["data"]) * _beside_data(given) or None,
            multiple=lambda given: _beside_data(given),
            conflict=_of_mesh,
        ),
        StrategyEntry(
            name="sharded",
            home="sharded:Sharded",
            summary="each worker keeps a part of parameters, gradients and optimizer state (FSDP2)",
            arguments={"offload": False, "replicas": 1},
            multiple=lambda given: max(int(given["replicas"]), 1),
            conflict=lambda given: ("", "") if given["replicas"] else ("there is at least one copy", "replicas=1"),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class AskedStrategy:
    """A strategy with the arguments that were typed."""

    entry: StrategyEntry
    arguments: Mapping[str, Value]

    def __str__(self) -> str:
        given = ",".join(f"{name}={_shown(value)}" for name, value in self.arguments.items())
        return f"{self.entry.name}({given})" if given else self.entry.name

    @property
    def workers(self) -> int | None:
        """The number of workers that these arguments ask for; None: any number."""
        return self.entry.workers(_defaults(self.entry) | dict(self.arguments))

    @property
    def multiple(self) -> int:
        """The number of workers is a multiple of this."""
        return self.entry.multiple(_defaults(self.entry) | dict(self.arguments))


def parse(typed: str) -> AskedStrategy:
    """UsageError if there is no such strategy, or if it takes no such argument."""
    name, _, rest = (part.strip() for part in typed.strip().partition("("))
    entry = CATALOG.get(name)
    if entry is None or (rest and not rest.endswith(")")):
        found = f"there is no strategy {name!r}" if entry is None else "a closing parenthesis is missing"
        near = difflib.get_close_matches(name, CATALOG, n=1) if entry is None else []
        raise UsageError(
            f"--strategy {typed}: {found}.",
            advice=(f"Did you mean --strategy {near[0]}? " if near else "")
            + "The strategies are:\n"
            + "\n".join(f"  {spelling(one):<40} {one.summary}" for one in CATALOG.values()),
        )
    arguments: dict[str, Value] = {}
    for argument, text in _typed_arguments(typed, rest[:-1]):
        if argument not in entry.arguments:
            raise UsageError(
                f"--strategy {typed}: {name} has no argument {argument!r}.",
                advice=f"Type: --strategy {_quoted(spelling(entry))}",
            )
        arguments[argument] = _value_of(typed, argument, text, entry.arguments[argument])
    what, instead = entry.conflict(_defaults(entry) | arguments)
    if what:
        raise UsageError(f"--strategy {typed}: {what}.", advice=f"Type: {instead}")
    return AskedStrategy(entry, arguments)


def load(typed: str) -> Any:
    """Makes the strategy, in a worker."""
    asked = parse(typed)
    return import_class(asked.entry)(**asked.arguments)


def import_class(entry: StrategyEntry) -> Any:
    """The class of a strategy: the zygote imports it once, before it forks the workers."""
    file, kind = entry.home.split(":")
    return getattr(importlib.import_module(f"paceline.strategies.{file}"), kind)


def spelling(entry: StrategyEntry) -> str:
    """How to type the strategy, with the defaults of its arguments."""
    shown = (f"{name}={'|'.join(v) if isinstance(v, tuple) else _shown(v)}" for name, v in entry.arguments.items())
    return f"{entry.name}({','.join(shown)})" if entry.arguments else entry.name


def complete(incomplete: str) -> list[tuple[str, str]]:
    """What a shell offers for the beginning of a strategy: names, and after a parenthesis the arguments."""
    name, opened, rest = incomplete.partition("(")
    entry = CATALOG.get(name)
    if not opened or entry is None:
        return [(one.name, one.summary) for one in CATALOG.values() if one.name.startswith(incomplete)]
    done, comma, last = rest.rpartition(",")
    before = f"{name}({done}{comma}"
    values = {argument: value for argument, value in entry.arguments.items() if f"{argument}=" not in done}
    return [
        (f"{before}{argument}={choice}", entry.summary)
        for argument, value in values.items()
        for choice in (value if isinstance(value, tuple) else (_shown(value),))
        if f"{argument}={choice}".startswith(last) or not last
    ]


def _defaults(entry: StrategyEntry) -> dict[str, Value]:
    return {name: value[0] if isinstance(value, tuple) else value for name, value in entry.arguments.items()}


def _typed_arguments(typed: str, inner: str) -> Iterator[tuple[str, str]]:
    """The pairs `name=value` between the parentheses. A value with a comma stands in quotation marks."""
    pair = re.compile(r"""\s*(\w+)\s*=\s*("[^"]*"|'[^']*'|[^,"']*)\s*(,|$)""")
    at = 0
    while at < len(inner):
        found = pair.match(inner, at)
        if found is None:
            raise UsageError(
                f"--strategy {typed}: {inner[at:].strip()!r} is not of the form argument=value.",
                advice='For example: --strategy "server(staleness=4)"',
            )
        yield found[1], found[2].strip().strip("\"'")
        at = found.end()


def _value_of(typed: str, name: str, text: str, default: Value | tuple[str, ...]) -> Value:
    if isinstance(default, tuple):
        if text in default:
            return text
        wanted = f"one of {', '.join(default)}"
    elif isinstance(default, bool):
        if text.lower() in ("true", "false", "yes", "no", "1", "0"):
            return text.lower() in ("true", "yes", "1")
        wanted = "true or false"
    elif isinstance(default, str):
        return text
    else:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if number >= 0 and (isinstance(default, float) or number.is_integer()):
            return number if isinstance(default, float) else int(number)
        wanted = "a number from 0" if isinstance(default, float) else "a whole number from 0"
    raise UsageError(
        f"--strategy {typed}: {name}={text} is not {wanted}.", advice=f"For example: {name}={_any(default)}"
    )


def _any(default: Value | tuple[str, ...]) -> str:
    return default[0] if isinstance(default, tuple) else _shown(default)


def _shown(value: Value) -> str:
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f'"{text}"' if "," in text else text


def _quoted(text: str) -> str:
    return f"'{text}'" if "(" in text else text
