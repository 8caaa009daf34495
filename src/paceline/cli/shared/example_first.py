"""Help texts that begin with an example, because most readers look for a command to type."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _show(examples: tuple[str, ...]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print()
    for number, line in enumerate(examples):
        console.print(f" {'Example: ' if number == 0 else '         '}{line}", style="bold", soft_wrap=True)


def verb(*shown: str) -> type[TyperCommand]:
    """The class of a verb whose help begins with these lines; the documentation reads them as `examples`."""

    class Verb(TyperCommand):
        examples = shown

        def format_help(self, ctx: Any, formatter: Any) -> None:
            _show(shown)
            super().format_help(ctx, formatter)

    return Verb


def program(*examples: str) -> type[TyperGroup]:
    """The class of the program itself, or of a group of verbs, whose help begins with these lines."""

    class Program(TyperGroup):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            _show(examples)
            super().format_help(ctx, formatter)

    return Program
