"""The base of all strategies: the Python API, for scripts that hand their objects over."""

from __future__ import annotations

from typing import Any, Self, TypeVar, overload

from paceline.script.seams.api import attach
from paceline.script.seams.strategy import Strategy

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class BaseStrategy(Strategy):
    """A strategy that a script can make itself: `paceline.Mirrored().distribute(model, optimizer, loader)`."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made._made_with = args, kwargs
        return made

    def __repr__(self) -> str:
        args, kwargs = self._made_with
        told = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        return f"paceline.{type(self).__name__}({', '.join(told)})"

    @overload
    def distribute(self, one: A, /) -> A: ...
    @overload
    def distribute(self, one: A, two: B, /) -> tuple[A, B]: ...
    @overload
    def distribute(self, one: A, two: B, three: C, /) -> tuple[A, B, C]: ...
    @overload
    def distribute(self, one: A, two: B, three: C, four: D, /) -> tuple[A, B, C, D]: ...
    @overload
    def distribute(self, *objects: Any) -> Any: ...

    def distribute(self, *objects: Any) -> Any:
        """Takes model, optimizer and loader (any number, in any order), and returns them distributed.

        Every worker calls it, with the same objects. Under `paceline run` everything is distributed already; under
        another launcher (torchrun) this connects the workers; alone it changes nothing.
        """
        attach(self, objects)
        return objects[0] if len(objects) == 1 else objects
