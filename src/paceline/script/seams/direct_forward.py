"""`model.forward(x)` is a seam like `model(x)`, in scripts that write it.

Without this, the modules called inside are split one by one, and a model of bare parameters not at all. Each `forward`
of torch's modules and of the script's own is wrapped, which torch.jit.script cannot read and which every inner call
pays for: therefore only if the script's text has such a call.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from paceline.script.chance import kind_of

if TYPE_CHECKING:
    from paceline.script.seams.stage import Stage

CALL = re.compile(r"(?<!super\(\))\.forward\(")


def find(stage: Stage, is_seam: Callable[[nn.Module], bool]) -> Callable[[], None]:
    """Installs the seam. Returns a function that removes it. `is_seam`: whether a call of this module is one now."""
    wrapped: list[tuple[type, Any]] = []
    if not _is_written_in(stage.run.script):
        return lambda: None

    def wrap(cls: type) -> None:
        plain = cls.__dict__.get("forward")
        if not inspect.isfunction(plain):
            return

        @functools.wraps(plain)
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return stage.call(plain, self, args, kwargs) if is_seam(self) else plain(self, *args, **kwargs)

        wrapped.append((cls, plain))
        cls.forward = forward  # type: ignore[attr-defined]

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        super(nn.Module, cls).__init_subclass__(**kwargs)
        if _is_the_scripts(cls):
            wrap(cls)

    for cls in _subclasses(nn.Module):
        if cls.__module__.startswith("torch.nn.modules.") or _is_the_scripts(cls):
            wrap(cls)
    nn.Module.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment, arg-type]

    def remove() -> None:
        del nn.Module.__init_subclass__
        for cls, plain in wrapped:
            cls.forward = plain  # type: ignore[attr-defined]

    return remove


def _is_written_in(script: str) -> bool:
    try:
        with open(script, encoding="utf-8", errors="replace") as file:
            return CALL.search(file.read()) is not None
    except OSError:  # a module (-m), or no file
        return False


def _is_the_scripts(cls: type) -> bool:
    if cls.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is not None and kind_of(file) == "script"


def _subclasses(cls: type) -> Iterator[type]:
    below: type
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)
