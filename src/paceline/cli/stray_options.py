"""Options of paceline that stand after the script, and so go to the script: `paceline run train.py -n 2`.

A script may well have its own `-n`. So nothing is refused: a warning is printed before the run if the script's source
does not mention the option, and otherwise only after a run that ended with exit code 2, which parsers use for options
that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from paceline.cli.command_words import Words, may_have, name_of, options_of, split, takes_value
from paceline.cli.terminal import stderr

EVERYBODYS = ("-h", "--help", "-m", "--version")  # options that every script has, or that say nothing
REFUSED = 2  # the exit code of a parser that does not know an option


@contextmanager
def noticed(command: Any, typed: Sequence[str], *, verb: str, module: bool) -> Iterator[None]:
    """Warns around a run, on standard error, if options of the verb stand after the script. `typed`: the words after
    the verb."""
    words = split(command, typed)
    found = strays(command, words)
    unmentioned = [stray for stray in found if not may_have(words.script, name_of(stray[0]), module=module)]
    if unmentioned:
        _warn(words, unmentioned, verb, "which does not mention it")
    try:
        yield
    except typer.Exit as end:
        if end.exit_code == REFUSED and found and not unmentioned:
            _warn(words, found, verb, "which ended with exit code 2")
        raise


def strays(command: Any, words: Words) -> list[list[str]]:
    """The options of the verb after the script, each with its value. None after `--`, which says that they are the
    script's."""
    known, found = options_of(command), []
    for place, word in enumerate(words.rest):
        if word == "--":
            break
        option = known.get(name_of(word))
        attached = word[2:].isdigit() if not word.startswith("--") else True
        if option is None or name_of(word) in EVERYBODYS or not (attached or word == name_of(word)):
            continue
        alone = word == name_of(word) and takes_value(option)
        found.append(words.rest[place : place + 2] if alone else [word])
    return found


def _warn(words: Words, found: list[list[str]], verb: str, why: str) -> None:
    moved = [word for stray in found for word in stray]
    rest = _without(words.rest, found)
    corrected = Words(own=words.own, script=words.script, rest=rest).line(verb, first=moved)
    first = " ".join(found[0])
    say: Callable[..., None] = stderr().print
    say(
        f"paceline: {first} after the script is given to {words.script}, {why}. Options of paceline come before the "
        "script.",
        style="yellow",
        soft_wrap=True,
    )
    say(f"  Type: {corrected}", style="yellow", soft_wrap=True)


def _without(rest: Sequence[str], found: list[list[str]]) -> list[str]:
    left = list(rest)
    for stray in found:
        at = left.index(stray[0])
        del left[at : at + len(stray)]
    return left
