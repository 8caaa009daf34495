"""Defaults of a project: options from `PACELINE_*` variables, paceline.toml and [tool.paceline] in pyproject.toml.

A default is put into the command line, after its verb, unless the same option was typed. So a value is read, checked
and refused as if somebody had typed it. The command line beats a variable, a variable beats paceline.toml, and
paceline.toml beats pyproject.toml; in each of them, a verb's own entry beats one for all verbs.
"""

from __future__ import annotations

import difflib
import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cli.command_words import declared, name_of, options_of, split, takes_value
from paceline.errors import UsageError

OWN, PROJECT = "paceline.toml", "pyproject.toml"
PREFIX = "PACELINE_"
# Variables that are no options: the secret of a rendezvous, a pod's number, whole tracebacks, shell completion, tests.
NO_OPTIONS = ("PACELINE_SECRET", "PACELINE_NODE", "PACELINE_TRACEBACK", "PACELINE_COMPLETE")
OF_TESTS = "PACELINE_TEST_"
# Options that must be typed each time: help, consent to deleting, and a token that everybody could read in a file.
TYPED_ONLY = ("help", "version", "install-completion", "show-completion", "yes", "token")
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """One default. `verb`: the words after `paceline` whose option it is; empty: of every verb that has it."""

    key: str
    value: Any
    verb: tuple[str, ...] = ()
    source: str  # as shown: `PACELINE_WORKERS`, `paceline.toml [run]`
    folder: Path | None = None  # of the file
    rank: int  # higher ones are beaten by lower ones

    @property
    def words(self) -> str:
        """As typed: `run --mod precision=bf16`."""
        values = self.value if isinstance(self.value, list) else [self.value]
        shown = [f"--{self.key}" if value is True else f"--{self.key} {value}" for value in values]
        return " ".join([*self.verb, *(shown if self.value is not False else [f"(no --{self.key})"])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """All defaults that were found, those that win first. `ignored`: files that were not read, and why."""

    found: tuple[Default, ...] = ()
    ignored: tuple[str, ...] = ()

    def beaten(self, default: Default) -> bool:
        """Whether another source has the same option of the same verb."""
        same = [each for each in self.found if (each.verb, each.key) == (default.verb, default.key)]
        return same[0] is not default


def find_defaults(program: Any, environment: Mapping[str, str], folder: Path) -> Defaults:
    """The defaults for a command that is typed in this folder. UsageError if a key is no option, or a file is no
    TOML."""
    found = list(_from_variables(program, environment))
    ignored = []
    for rank, name in ((2, OWN), (4, PROJECT)):
        for path in _above(folder, name):
            table = _table(path)
            if table is None:
                continue  # a pyproject.toml of something else
            if why := _untrusted(path):
                ignored.append(f"{path} is not used: {why}.")
                continue
            found += _from_table(program, table, path, rank)
            break
    return Defaults(found=tuple(sorted(found, key=lambda each: each.rank)), ignored=tuple(ignored))


def with_defaults(program: Any, arguments: Sequence[str], defaults: Defaults) -> tuple[list[str], list[Default]]:
    """The command line with the defaults in their places, and those that were used. UsageError if a value cannot be
    one of its option."""
    made: list[str] = []
    used: list[Default] = []
    verb: tuple[str, ...] = ()
    command, words = program, list(arguments)
    while words and words[0] in getattr(command, "commands", {}):
        verb = (*verb, words.pop(0))
        command = command.commands[verb[-1]]
        typed = split(command, words)
        has = options_of(command)
        asked = {id(has[name_of(word)]) for word in typed.own if name_of(word) in has}
        made.append(verb[-1])
        for key, default in _winners(defaults, verb).items():
            option = has.get(f"--{key}")
            if option is not None and id(option) not in asked:
                made += _words(command, option, default)
                used.append(default)
        if getattr(command, "commands", {}) and typed.script in command.commands:
            made += typed.own
            words = [typed.script, *typed.rest]
    return [*made, *words], used


def _winners(defaults: Defaults, verb: tuple[str, ...]) -> dict[str, Default]:
    winners: dict[str, Default] = {}
    for default in defaults.found:
        if default.verb in ((), verb):
            winners.setdefault(default.key, default)
    return winners


def _words(command: Any, option: Any, default: Default) -> list[str]:
    value, several = default.value, bool(getattr(option, "multiple", False))
    if not takes_value(option):
        text = str(value).strip().lower()
        if text not in (*YES, *NO) or isinstance(value, list):
            raise _wrong(default, "is true or false")
        return [f"--{default.key}"] if text in YES else []
    if isinstance(value, str) and default.folder is None and several:
        value = shlex.split(value)  # of a variable
    values = value if isinstance(value, list) else [value]
    if len(values) != 1 and not several:
        raise _wrong(default, "takes one value")
    for each in values:
        if isinstance(each, bool | dict | list):
            raise _wrong(default, "takes a text or a number")
    is_path = declared(command, option.name)[0] is Path
    return [f"--{default.key}={_located(str(each), default) if is_path else each}" for each in values]


def _located(value: str, default: Default) -> str:
    """A path in a file is relative to that file."""
    if default.folder is None or os.path.isabs(value) or default.folder == Path.cwd():
        return value
    return os.path.relpath(default.folder / value)


def _wrong(default: Default, takes: str) -> UsageError:
    return UsageError(
        f"{default.source}: {default.key} = {default.value!r}: --{default.key} {takes}.",
        advice="Correct the value, or leave it out. For all defaults, type: paceline doctor",
    )


# -- sources -----------------------------------------------------------------------------------------------------------


def _from_variables(program: Any, environment: Mapping[str, str]) -> Iterator[Default]:
    names = [name for name in sorted(environment) if name.startswith(PREFIX)]
    names = [name for name in names if name not in NO_OPTIONS and not name.startswith(OF_TESTS)]
    if not names:
        return  # most often: then no verb has to be read
    verbs = {"-".join(path): path for path, _ in _commands(program)}
    options = _all_keys(program)
    for name in names:
        key = name.removeprefix(PREFIX).lower().replace("_", "-")
        of = max((verb for verb in verbs if key.startswith(f"{verb}-")), key=len, default="")
        own = key.removeprefix(f"{of}-")
        if of and own in _keys(dict(_commands(program))[verbs[of]]):
            yield Default(key=own, value=environment[name], verb=verbs[of], source=name, rank=0)
        elif key in options:
            yield Default(key=key, value=environment[name], source=name, rank=1)
        else:
            known = [*options, *(f"{verb}-{key}" for verb, path in verbs.items() for key in _all_keys(program, path))]
            near = difflib.get_close_matches(key, known, n=1)
            said = f"{PREFIX}{near[0].upper().replace('-', '_')}" if near else ""
            raise UsageError(
                f"{name} is not an option of paceline.",
                advice=f"Did you mean {said}?" if said else f"Unset it: unset {name}",
            )


def _from_table(program: Any, table: Mapping[str, Any], path: Path, rank: int) -> Iterator[Default]:
    top = "tool.paceline" if path.name == PROJECT else ""

    def take(command: Any, verb: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[Default]:
        where = ".".join(part for part in (top, *verb) if part)
        source = f"{path.name} [{where}]" if where else path.name
        below = getattr(command, "commands", {})
        keys = _all_keys(program) if not verb else _keys(command)
        for name, value in table.items():
            key = name.replace("_", "-")
            if isinstance(value, dict) and name in below:
                yield from take(below[name], (*verb, name), value)
            elif key in keys and not isinstance(value, dict):
                own = rank if verb else rank + 1
                yield Default(key=key, value=value, verb=verb, source=source, folder=path.parent, rank=own)
            else:
                raise _unknown(program, path, where, name, key, [*keys, *below], verb)

    yield from take(program, (), table)


def _unknown(
    program: Any, path: Path, where: str, name: str, key: str, known: Sequence[str], verb: tuple[str, ...]
) -> UsageError:
    of = f"`paceline {' '.join(verb)}`" if verb else "any verb"
    what = f"{path}{f' [{where}]' if where else ''}: {name} is not an option of {of}."
    if key in TYPED_ONLY:
        return UsageError(what.replace("is not an option of", "cannot be a default of"), advice="Type it when needed.")
    others = [" ".join(each) for each, command in _commands(program) if key in _keys(command)]
    if others:
        return UsageError(what, advice=f"It is an option of: {', '.join(others)}. Move it to the table of that verb.")
    near = difflib.get_close_matches(key, known, n=1)
    helped = " ".join(["paceline", *verb, "--help"])
    return UsageError(what, advice=f"Did you mean {near[0]}?" if near else f"For the options, type: {helped}")


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield (*path, name), below
        yield from _commands(below, (*path, name))


def _keys(command: Any) -> list[str]:
    names = (name.removeprefix("--") for name in options_of(command) if name.startswith("--"))
    return [name for name in names if name not in TYPED_ONLY]


def _all_keys(program: Any, path: tuple[str, ...] | None = None) -> list[str]:
    """The options of every verb, or of one."""
    found = {key: None for each, command in _commands(program) if path in (None, each) for key in _keys(command)}
    return list(found)


def _above(folder: Path, name: str) -> Iterator[Path]:
    """Files of this name in the folder and above it, as far as the repository or the home folder."""
    for here in (folder, *folder.parents):
        if (here / name).is_file():
            yield here / name
        if (here / ".git").exists() or here == Path.home():
            return


def _table(path: Path) -> Mapping[str, Any] | None:
    """The table of paceline in a file; None if the file has none."""
    import tomllib  # only if there is a file

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        if path.name == PROJECT and isinstance(error, OSError):
            return None
        raise UsageError(f"{path} cannot be read: {error}.", advice="Correct the file, or remove it.") from error
    if path.name == OWN:
        return content
    table = content.get("tool", {}).get("paceline")
    return table if isinstance(table, dict) else None


def _untrusted(path: Path) -> str:
    """Why a file must not choose options (some are programs to run); empty if it may."""
    told = os.stat(path)
    if told.st_uid not in (0, os.geteuid()):
        return "it belongs to another account"
    return "every account may change it" if told.st_mode & stat.S_IWOTH else ""
