"""What is wrong with a command line that could not be parsed, in paceline's own words, and what to type.

The parser's own messages name its classes and types ("Input should be a valid integer"). This module reads which
option is at fault from the parser's error, and what that option takes from our own declaration of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, cast, get_args, get_origin

import typer

from paceline.cli.command_words import declared, is_script, mentions, name_of, options_of, split, takes_value
from paceline.errors import UsageError

# Some versions of Typer bundle click and others import it. In both cases, BadParameter's base class is click's usage
# error.
Mistyped = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])

# Options that earlier versions, or other launchers, have; with what to type instead.
ELSEWHERE = {
    "--sync-bn": "Leave --sync-bn out: batch norm sees the whole batch by default. (DDP's form: --mod bn=local)",
    "--view": "Leave --view out: the script sees the whole batch. (DDP's form: --mod view=slice)",
    "--nproc-per-node": "Type: -n N",
    "--nproc_per_node": "Type: -n N",
    "--nnodes": "Type: --nodes N, with --rendezvous HOST:PORT",
    "--num-workers": "Type: -n N for workers of the run, or --mod loader=N for processes that load data",
    "--num-processes": "Type: -n N",
    "--num_processes": "Type: -n N",
    "--mods": "Type: --mod NAME=VALUE, once for each mod",
}


def explained(error: Any, arguments: Sequence[str], program: Any) -> UsageError:
    """The error to show. `error` is one of the parser's; `arguments` the whole command line of the `program`."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    command, verb, words = program, "paceline", list(arguments)
    while words and words[0] in getattr(command, "commands", {}):
        command, verb = command.commands[words[0]], f"{verb} {words.pop(0)}"
    script_is_missing = "MissingParameter" in kinds and error.param is not None and error.param.name == "script"
    if ("NoSuchOption" in kinds or script_is_missing) and (swallowed := _swallowed(command, verb, words)):
        return swallowed
    if "NoSuchOption" in kinds:
        return _no_such_option(error.option_name, command, verb, words)
    if "MissingParameter" in kinds:
        return _missing(error.param, command, verb)
    if "BadParameter" in kinds:
        return _bad_value(error.param, command, verb, words, error.message)
    if "BadOptionUsage" in kinds:
        return _bad_usage(error.option_name, command, verb)
    return _other(error.format_message(), command, verb, words)


def _help(verb: str) -> str:
    return f"For the options, type: {verb} --help"


def _no_such_option(name: str, command: Any, verb: str, words: Sequence[str]) -> UsageError:
    typed = next((word for word in words if name_of(word) == name or word.partition("=")[0] == name), name)
    shown = typed.partition("=")[0]
    found = f"{shown} is not an option of `{verb}`."
    if shown in ELSEWHERE:
        return UsageError(found, advice=ELSEWHERE[shown])
    near = difflib.get_close_matches(shown, options_of(command), n=1, cutoff=0.7)
    meant = f"Did you mean {near[0]}? " if near else ""
    parts = split(command, words) if _runs_scripts(command) else None
    if parts is not None and parts.script and is_script(parts.script) | ("-m" in parts.own):
        corrected = parts.line(verb, after=parts.unknown)
        if mentions(parts.script, shown, module="-m" in parts.own):
            return UsageError(
                f"{found} {parts.script} has it, and options of a script come after the script.",
                advice=f"Type: {corrected}",
            )
        if not near:
            return UsageError(found, advice=f"If it is an option of {parts.script}, type: {corrected}")
    return UsageError(found, advice=f"{meant}{_help(verb)}")


def _swallowed(command: Any, verb: str, words: Sequence[str]) -> UsageError | None:
    """An option whose value was left out, so that the script became its value."""
    if not _runs_scripts(command):
        return None
    known = options_of(command)
    for option, value in pairwise(words):
        if option in known and takes_value(known[option]) and value.endswith(".py"):
            name = known[option].metavar or "VALUE"
            return UsageError(
                f"{option} {value}: the script is taken for the value of {option}, so that no script is left.",
                advice=f"Type: {verb} {option} {name} {value} …",
            )
        if is_script(option):
            return None
    return None


def _runs_scripts(command: Any) -> bool:
    return any(parameter.name == "script" for parameter in command.params)


def _missing(parameter: Any, command: Any, verb: str) -> UsageError:
    name = parameter.metavar or parameter.name.upper() if parameter is not None else "a word"
    if parameter is not None and parameter.opts[0].startswith("-"):
        name = parameter.opts[0]
    examples = getattr(command, "examples", ())
    advice = f"Type for example: {examples[0]}" if examples else _help(verb)
    return UsageError(f"{verb}: {name} is missing.", advice=advice)


def _bad_usage(name: str, command: Any, verb: str) -> UsageError:
    option = options_of(command).get(name)
    if option is not None and getattr(option, "is_flag", False):
        return UsageError(f"{name} takes no value.", advice=f"Type: {name}")
    takes = getattr(option, "metavar", None) or "VALUE"
    return UsageError(f"{name} needs a value.", advice=f"Type: {name} {takes}. {_help(verb)}")


def _bad_value(parameter: Any, command: Any, verb: str, words: Sequence[str], message: str) -> UsageError:
    if parameter is None:
        return UsageError(message, advice=_help(verb))
    typed, value = _typed(parameter, words)
    kind, least, most = declared(command, parameter.name)
    shown = f"{typed} {value}".strip() if typed else value or parameter.name
    if get_origin(kind) is Literal:
        choices = [str(choice) for choice in get_args(kind)]
        near = difflib.get_close_matches(value.lower(), choices, n=1)
        return UsageError(
            f"{shown}: not one of {', '.join(choices)}.", advice=f"Type: {typed} {(near or choices)[0]}. {_help(verb)}"
        )
    if kind in (int, float):
        what = "a whole number" if kind is int else "a number"
        limits = "" if least is None else f" from {least:g}"
        limits += "" if most is None else f" to {most:g}"
        usual = parameter.default
        example = (
            PORT
            if parameter.name == "port"
            else max(2, int(least or 0))
            if kind is int
            else (most if most is not None else least or 1.0)
        )
        if isinstance(usual, int | float) and usual >= (least or 0) and usual:
            example = usual
        return UsageError(
            f"{shown}: not {what}{limits}.", advice=f"Type it like this: {typed} {example:g}. {_help(verb)}"
        )
    return UsageError(f"{shown}: this value cannot be used.", advice=_help(verb))


def _typed(parameter: Any, words: Sequence[str]) -> tuple[str, str]:
    """The option as it was typed, and its value."""
    for place, word in enumerate(words):
        name = name_of(word)
        if name not in parameter.opts:
            continue
        if word == name:
            return name, words[place + 1] if place + 1 < len(words) else ""
        return name, word[len(name) :].removeprefix("=")
    return (parameter.opts[0] if parameter.opts[0].startswith("-") else ""), ""


PORT = 8000  # an example that any account may use
# Words that people know from other programs.
MEANT = {
    "compare": "Runs are compared in a browser: type paceline view, tick two or more runs, and press Compare.",
    "help": "For the commands, type: paceline --help",
    "version": "Type: paceline --version",
    **dict.fromkeys(("list", "ls", "ps", "history", "log", "logs"), "For the records, type: paceline runs"),
    **dict.fromkeys(("rm", "delete", "remove", "clean"), "To delete records, type: paceline runs delete NAME"),
    **dict.fromkeys(("ui", "web", "serve", "dashboard", "board", "open", "show"), "For the pages, type: paceline view"),
    **dict.fromkeys(("train", "launch", "start", "exec", "torchrun"), "Type: paceline run -n 2 train.py"),
    **dict.fromkeys(("trace", "prof"), "Type: paceline profile train.py"),
    **dict.fromkeys(("bench", "benchmark", "speed"), "Type: paceline scale -n 1,2,4 train.py"),
    **dict.fromkeys(("optimize", "optimise", "autotune"), "Type: paceline tune train.py"),
    **dict.fromkeys(("check", "info", "env"), "Type: paceline doctor"),
}


def _other(message: str, command: Any, verb: str, words: Sequence[str]) -> UsageError:
    """A command that does not exist, or words that no argument takes."""
    names = list(getattr(command, "commands", {}))
    word = next((word for word in words if not word.startswith("-")), "")
    if names and word and word not in names:
        near = difflib.get_close_matches(word, names, n=1)
        meant = MEANT.get(word.lower()) if verb == "paceline" else None
        if meant is not None:
            advice = meant
        elif near:
            advice = f"Did you mean: {verb} {near[0]}?"
        elif verb == "paceline" and is_script(word):
            advice = f"To run a script, type: paceline run {word}"
        else:
            advice = f"For the commands, type: {verb} --help"
        return UsageError(f"{verb} has no command {word!r}.", advice=advice)
    if names:
        return UsageError(f"{verb}: a command is missing.", advice=f"For the commands, type: {verb} --help")
    extra = re.search(r"\(([^()]*)\)$", message)
    if extra is not None:
        return UsageError(f"{verb}: {extra[1]!r} is too much.", advice=f"Leave it out. {_help(verb)}")
    return UsageError(message, advice=_help(verb))
