"""Help texts that begin with an example, because most readers look for a command to type."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from typer.core import TyperCommand, TyperGroup

from paceline.options import HOSTS, LABELS, LASTING, STALLS

ALL = "--help-all"
RARE = (HOSTS, STALLS, LASTING, LABELS)  # panels of --help-all


class _Unused(ModuleType):
    """Stands in for a module, every name of which is a class that nobody makes an object of."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return type(name, (), {})


def _import_help() -> None:
    """Imports what Typer prints help with, without Markdown and tracebacks: they take a third of the time of a help,
    which has neither."""
    unused = [name for name in ("rich.markdown", "rich.traceback") if name not in sys.modules]
    sys.modules |= {name: _Unused(name) for name in unused}
    try:
        import typer.rich_utils  # noqa: F401
    finally:
        for name in unused:
            del sys.modules[name]


def _show(examples: tuple[str, ...]) -> None:
    _import_help()
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print()
    for number, line in enumerate(examples):
        console.print(f" {'Example: ' if number == 0 else '         '}{line}", style="bold", soft_wrap=True)


def verb(*shown: str, rare: Collection[str] = ()) -> type[TyperCommand]:
    """The class of a verb whose help begins with these lines; the documentation reads them as `examples`. `rare`: the
    parameters that only --help-all shows, beside those of whole panels."""

    def is_rare(param: Any) -> bool:
        return getattr(param, "rich_help_panel", None) in RARE or param.name in rare

    class Verb(TyperCommand):
        examples = shown

        def get_params(self, ctx: Any) -> list[Any]:
            found = super().get_params(ctx)
            return [*found, _help_all(found[-1])] if any(map(is_rare, found)) else found

        def format_help(self, ctx: Any, formatter: Any, *, whole: bool = False) -> None:
            _show(shown)
            rare: list[Any] = [] if whole else list(filter(is_rare, self.params))
            with _without_types(self.get_params(ctx)), _hidden(rare):
                super().format_help(ctx, formatter)

    return Verb


def _help_all(help_option: Any) -> Any:
    """`--help-all`, made from the verb's own --help."""

    def show(ctx: Any, param: Any, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.command.format_help(ctx, ctx.make_formatter(), whole=True)
            ctx.exit()

    made = copy.copy(help_option)
    made.name, made.opts, made.secondary_opts, made.callback = "help_all", [ALL], [], show
    made.help = "Show all options: several hosts, failures, labels, rare ones."
    return made


@contextmanager
def _hidden(params: list[Any]) -> Iterator[None]:
    before = [param.hidden for param in params]
    for param in params:
        param.hidden = True
    try:
        yield
    finally:
        for param, hidden in zip(params, before, strict=True):
            param.hidden = hidden


@contextmanager
def _without_types(params: list[Any]) -> Iterator[None]:
    """Leaves out what only a Python programmer reads: `<bool>`, `<list[str]>`. Choices and names of values stay."""

    def words(plain: Any) -> Any:
        def shown(*args: Any, **kwargs: Any) -> Any:
            told = plain(*args, **kwargs)
            if isinstance(told, str) and told.startswith("<") and told.endswith(">"):
                return told[1:-1] if "|" in told else None
            return told

        return shown

    told = [param for param in params if hasattr(param, "display_type_rich")]  # of recent versions of typer
    for param in told:
        param.display_type_rich = words(param.display_type_rich)
    try:
        yield
    finally:
        for param in told:
            del param.display_type_rich


def program(*examples: str) -> type[TyperGroup]:
    """The class of the program itself, or of a group of verbs, whose help begins with these lines."""

    class Program(TyperGroup):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            _show(examples)
            with _without_types(self.get_params(ctx)):
                super().format_help(ctx, formatter)

    return Program
