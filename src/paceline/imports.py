"""Calls a function when a module has been imported, for modules that may never be."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def after_import(name: str, do: Callable[[Any], None]) -> None:
    """Calls `do(module)` at once if the module is imported already, otherwise right after its import, before the
    importer can take anything from it."""
    if name in sys.modules:
        do(sys.modules[name])
    else:
        _watch().waiting.setdefault(name, []).append(do)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[Any], None]]] = {}
        self._asking: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.waiting or name in self._asking:
            return None
        self._asking.add(name)  # the next line asks this finder, too
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.remove(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            # Only now: a library may look for a module long before it imports it.
            for do in self.waiting.pop(name, ()):
                do(sys.modules.get(name, module))  # a module may put another object in its place

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch() -> _Finder:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder
    sys.meta_path.insert(0, finder := _Finder())
    return finder
