"""Splits the words of a command line into paceline's options, the script, and the script's own arguments.

The parser has done that already where the command line is right. This module is for command lines that are wrong: it
says which words belong where, also by what the source of the script mentions, and writes the corrected line.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from paceline.options import LABELS  # of one record: another command makes another one


@dataclass(slots=True)
class Words:
    """The words after the verb."""

    own: list[str] = field(default_factory=list)  # options of the verb, with their values
    unknown: list[str] = field(default_factory=list)  # options before the script that the verb does not have
    script: str = ""
    rest: list[str] = field(default_factory=list)  # after the script

    def line(self, verb: str, *, first: Sequence[str] = (), after: Sequence[str] = ()) -> str:
        """`paceline run`, the options `first` and `own`, the script, and its arguments: `after`, then the others."""
        return f"{verb} {shlex.join([*first, *self.own, self.script, *after, *self.rest])}"


def another_verb(context: Any, typed: Sequence[str], verb: str, options: Sequence[str]) -> str:
    """The command line of another verb for the same script: `options`, then those that were typed and that mean the
    same there, without those that `options` replace, and without labels. `typed`: the words after `paceline`."""
    words = split(context.command, typed[1:])
    command = context.parent.command.commands[verb]
    known, given = options_of(command), {known_as for known_as in options_of(command) if known_as in options}
    replaced = {id(known[name]) for name in given if not getattr(known[name], "multiple", False)}
    kept: list[str] = []
    waiting = iter(words.own)
    for word in waiting:
        option = options_of(context.command)[name_of(word)]
        value = list(_next(waiting)) if takes_value(option) and word == name_of(word) else []
        there = known.get(name_of(word))
        # Of the same name and another help (--steps of run, profile and scale) is another option.
        means_the_same = there is not None and there.help == option.help
        if means_the_same and id(there) not in replaced and option.rich_help_panel != LABELS:
            kept += [word, *value]
    return Words(own=kept, script=words.script, rest=words.rest).line(f"paceline {verb}", first=options)


def options_of(command: Any) -> dict[str, Any]:
    """The options of a verb by their names: `-n` and `--workers` are the same one."""
    return {
        name: option
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    }


def declared(command: Any, name: str) -> tuple[Any, float | None, float | None]:
    """The type of a parameter of a verb, or of one of several values, and its limits, as our own code declares them."""
    try:
        annotation = inspect.signature(command.callback, eval_str=True).parameters[name].annotation
    except (AttributeError, KeyError, TypeError, ValueError, NameError):
        return None, None, None
    kind, *more = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation,)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next((one for one in get_args(kind) if one is not type(None)), None)
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    about = more[0] if more else None
    return kind, getattr(about, "min", None), getattr(about, "max", None)


def takes_value(option: Any) -> bool:
    return not getattr(option, "is_flag", False)


def name_of(word: str) -> str:
    """`--steps=4` → `--steps`, `-n2` → `-n`."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def split(command: Any, words: Sequence[str]) -> Words:
    """Splits the words after the verb. The script is the first word that is neither an option nor a value. After an
    option that the verb does not have, a word is taken for its value, unless that word is a Python file."""
    known, found = options_of(command), Words()
    waiting = iter(words)
    after_unknown = False
    for word in waiting:
        if word == "--":
            continue
        if word.startswith("-") and len(word) > 1:
            option = known.get(name_of(word))
            into = found.unknown if option is None else found.own
            into.append(word)
            after_unknown = option is None and "=" not in word
            if option is not None and takes_value(option) and word == name_of(word):
                into.extend(_next(waiting))
        elif after_unknown and not is_script(word):
            found.unknown.append(word)
            after_unknown = False
        else:
            found.script = word
            break
    found.rest = list(waiting)
    return found


def is_script(word: str) -> bool:
    return word.endswith(".py") or Path(word).is_file()


def _next(words: Iterator[str]) -> Iterator[str]:
    word = next(words, None)
    if word is not None:
        yield word


# -- a script's source ------------------------------------------------------------------------------------------------


MOST = 30  # files that are read; a parser is rarely further away
# A parser whose options come from a library, or from the names of functions and fields: any option may be one of its.
FREE = r"HfArgumentParser|TrlParser|LightningCLI|jsonargparse|simple_parsing|hydra|omegaconf|fire|tyro|typer|absl"


def mentions(script: str, option: str, *, module: bool = False) -> bool:
    """Whether the source spells this option out, such as `-n` or `--seed`."""
    spelled = re.compile(rf"(?<![\w-]){re.escape(option)}(?![\w-])")
    return any(spelled.search(source) for source in _sources(script, module=module))


def may_have(script: str, option: str, *, module: bool = False) -> bool:
    """Whether the script may understand this option. True if its source cannot be read."""
    # argparse accepts the beginning of an option, so `--batch` may be meant for the script's `--batch-size`.
    end = "" if option.startswith("--") else r"(?![\w-])"
    spelled = re.compile(rf"(?<![\w-]){re.escape(option)}{end}")
    files = list(_sources(script, module=module))
    return not files or any(spelled.search(source) or re.search(rf"\b({FREE})\b", source) for source in files)


def _sources(script: str, *, module: bool) -> Iterator[str]:
    start = Path(*script.split(".")).with_suffix(".py") if module else Path(script)
    waiting, seen = [start], {start}
    while waiting and len(seen) <= MOST:
        path = waiting.pop(0)
        try:
            source = path.read_text(errors="replace")
        except OSError:
            continue
        yield source
        for near in _imported(source, path.parent):
            if near not in seen:
                seen.add(near)
                waiting.append(near)


def _imported(source: str, folder: Path) -> Iterator[Path]:
    """Files beside the script, or below the current folder, that the source imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = node.module or ""
            names = [inside, *(f"{inside}.{alias.name}".strip(".") for alias in node.names)]
        for name in filter(None, names):
            for home in (folder, Path()):
                path = home.joinpath(*name.split(".")).with_suffix(".py")
                if path.is_file():
                    yield path
