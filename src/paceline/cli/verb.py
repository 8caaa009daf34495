"""How a function becomes a verb: its options are the fields of the frozen dataclasses that it takes (`options.py`).

A verb is called with its session, and with these dataclasses as they were typed. Typer reads the signature of a
function, so one is made of the fields.
"""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, Field, is_dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from paceline.cli import help
from paceline.cli.session import Session
from paceline.cli.stray_options import noticed
from paceline.errors import UsageError
from paceline.launch.horovod_scripts import distributes_itself
from paceline.mods import catalog as mods
from paceline.options import HOW, Option, declared, names_of
from paceline.settings import RunSettings, all_variables
from paceline.strategies import catalog as strategies

# Arguments after the script belong to the script, so parsing stops there.
SCRIPT_LAST = {"allow_interspersed_args": False}


def alone() -> typer.Typer:
    """The place of a verb that has no verbs below it."""
    return typer.Typer(add_completion=False)


def group(*examples: str, **more: Any) -> typer.Typer:
    """A verb with verbs below it."""
    return typer.Typer(cls=help.program(*examples), add_completion=False, **more)


def verb(app: typer.Typer, *examples: str, script: bool = True) -> Callable[[Callable[..., None]], Any]:
    """Makes a function a verb of `app`, whose help begins with the examples. `script`: it needs the script of its
    `RunSettings`."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        take, options = taking_options(function, script=script)
        rare = {field.name for field in options if field.metadata["option"].rare}
        last = SCRIPT_LAST if any(field.name == "arguments" for field in options) else {}
        app.command(function.__name__, cls=help.verb(*examples, rare=rare), context_settings=last)(take)
        return function

    return add


def taking_options(
    function: Callable[..., None], *, script: bool = True
) -> tuple[Callable[..., None], list[Field[Any]]]:
    """The function as Typer calls it, and its options: fields of the dataclasses that `function` takes."""
    taken: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if is_dataclass(parameter.annotation) and parameter.annotation is not Session
    }
    chosen = _chosen(function.__name__, taken)
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(_parameter(owner, field, script) for _, owner, field in chosen)]

    @functools.wraps(function)
    def take(context: typer.Context, **typed: Any) -> None:
        session = Session.of(context)
        session.json, session.quiet = typed.get("json", False), typed.get("quiet", False)
        session.seeded = typed.get("seed") is not None
        stray: AbstractContextManager[None] = nullcontext()
        if RunSettings in taken.values():
            words = session.typed[1:]
            stray = noticed(context.command, words, verb=context.command_path, module=typed["module"])
        with stray, session.resources:
            given: dict[str, dict[str, Any]] = {name: {} for name in taken}
            for name, _, field in chosen:
                given[name][field.name] = _value(field, typed[field.name])
            made = {
                name: run_settings(**given[name], seeded=session.seeded) if kind is RunSettings else kind(**given[name])
                for name, kind in taken.items()
            }
            if not session.reads_only:
                function(session, **made)

    take.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    take.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return take, [field for *_, field in chosen]


def _chosen(verb: str, taken: Mapping[str, Any]) -> list[tuple[str, type, Field[Any]]]:
    """The options that a verb may use, each with the name of the parameter that gets it, and the class that declares
    it: the verb's own, then the settings of a run, then those of all verbs. An own option takes the place of another
    with its name."""
    rows: list[tuple[bool, float, str, type, Field[Any]]] = []
    for name, kind in taken.items():
        for field, about in declared(kind):
            bases = enumerate(kind.__mro__)
            depth, owner = next((depth, base) for depth, base in bases if field.name in base.__annotations__)
            place = 0.5 if kind is RunSettings else depth
            if verb in (about.verbs or (verb,)):
                rows.append((field.name != "workers", -place if about.argument else place, name, owner, field))
    chosen: dict[str, tuple[str, type, Field[Any]]] = {}
    for *_, name, owner, field in sorted(rows, key=lambda row: row[:2]):
        chosen.setdefault((names_of(field) or (field.name,))[-1], (name, owner, field))
    return [*chosen.values()]


def _parameter(owner: type, field: Field[Any], script: bool) -> inspect.Parameter:
    about: Option = field.metadata["option"]
    hint = _hints(owner)[field.name]
    default = about.typed if about.reads else None if about.usual else field.default
    kind = str if about.reads else hint
    if _is_turned(field):
        default = False
    if get_origin(hint) is tuple:
        kind, default = list[get_args(hint)[0]], None if default == () else default  # type: ignore[misc]
    if field.name == "script" and not script:
        default = ""
    shown = about.usual or default not in (None, "", MISSING)
    more: dict[str, Any] = {"metavar": about.value or None, "help": about.help, "show_default": shown}
    more["autocompletion"] = about.complete or (COMPLETE.get(field.name) if owner is RunSettings else None)
    if about.argument:
        info = typer.Argument(**more)
    else:
        panel = (vars(owner).get("PANEL", HOW) if about.panel is None else about.panel) or None
        info = typer.Option(*names_of(field), min=about.least, max=about.most, rich_help_panel=panel, **more)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind | None if default is None else kind, info],
    )


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_turned(field: Field[Any]) -> bool:
    """Whether the option is typed to turn off what is on by default: `--no-autotune`."""
    return field.default is True and names_of(field)[0].startswith("--no-")


def _value(field: Field[Any], typed: Any) -> Any:
    """The value of a field. Nothing typed leaves its default."""
    about: Option = field.metadata["option"]
    if typed is None:
        return field.default
    if about.reads is not None:
        return about.reads(typed, names_of(field)[-1])
    if isinstance(typed, list):
        return tuple(typed)
    return not typed if _is_turned(field) else typed


def run_settings(*, seeded: bool = False, **typed: Any) -> RunSettings:
    """The settings of a run on one worker. Draws a seed if none was given: a script without a seed differs from run to
    run, as under plain Python. UsageError if a verb without --as is to run a script that distributes itself."""
    run = RunSettings(**typed)
    launcher = run.launch_as
    if launcher is None and run.script and distributes_itself(run.script, module=run.module):
        if "launch_as" not in typed:
            raise UsageError(
                f"{run.script} distributes itself with Horovod: it calls hvd.init(). This verb runs scripts for a "
                "single process, whose work Paceline splits.",
                advice="Type: paceline run, or paceline profile. How to take Horovod out: see docs/from-horovod.md",
            )
        launcher = "horovod"
    return replace(
        run,
        launch_as=launcher,
        arguments=own_arguments(run.arguments),
        strategy=str(strategies.parse(run.strategy)),
        mods=tuple(map(str, mods.parse(run.mods))),
        track=tuple(dict.fromkeys(run.track)),
        seed=run.seed if seeded else secrets.randbelow(2**31),
    )


def own_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """The script's arguments, without a `--` directly after the script."""
    return tuple(arguments[1:] if arguments[:1] == ("--",) else arguments)


# -- what a shell offers -----------------------------------------------------------------------------------------------


def _mod_values(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """What a shell offers for a script: nothing, so that it offers files. But bash takes `--mod precision=b` apart into
    `precision`, `=` and `b`, and the parser takes `=` for the script; then, the values of that mod."""
    typed = [str(mod) for mod in context.params.get("mods") or context.params.get("start") or ()]
    script = context.params.get("script")
    if not typed or "=" in typed[-1] or (incomplete and script != "=") or script not in (None, "="):
        return []
    if script is None and not _completes_value():
        return []
    return [(mod.partition("=")[2], about) for mod, about in mods.complete(f"{typed[-1]}={incomplete}")]


def _completes_value() -> bool:
    """Whether bash completes a word that ends with `=`: the `=` is then a word of its own, and the last one."""
    env = all_variables()
    words, at = env.get("COMP_WORDS", "").split(), env.get("COMP_CWORD", "")
    return at.isdecimal() and int(at) < len(words) and words[int(at)] == "="


COMPLETE = {"strategy": strategies.complete, "mods": mods.complete, "script": _mod_values, "arguments": _mod_values}
