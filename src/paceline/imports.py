"""Three things at imports: a function that is called when a module has been imported, for modules that may never be; a
package that stands in for another one where that is not installed; and which modules hold an object."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from itertools import takewhile
from typing import Any

_holders: dict[int, tuple[Any, list[tuple[Any, str]], str]] = {}  # by id: the object, its holders, the last module


def after_import(name: str, do: Callable[[Any], None]) -> None:
    """Calls `do(module)` at once if the module is imported already, otherwise right after its import, before the
    importer can take anything from it."""
    if name in sys.modules:
        do(sys.modules[name])
    else:
        _watch().waiting.setdefault(name, []).append(do)


class _Finder:
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


def holders(thing: object) -> list[tuple[Any, str]]:
    """The modules that hold this object, each with the name under which it does. A second call looks only at modules
    that were imported since the first one: the zygote makes the first call, because a look at every module writes into
    most of Python's memory, and each worker would then have to copy it."""
    _, found, last = _holders.get(id(thing), (thing, [], ""))
    for name in list(takewhile(lambda name: name != last, reversed(sys.modules))):
        module = sys.modules[name]
        found += [(module, key) for key, value in list(getattr(module, "__dict__", {}).items()) if value is thing]
    _holders[id(thing)] = thing, found, next(reversed(sys.modules))
    return [(module, name) for module, name in found if module.__dict__.get(name) is thing]


def stand_in(name: str, home: str, *, asked: Callable[[str], bool]) -> None:
    """From now on `import name` and `import name.x` give the modules `home` and `home.x`, the very same objects, if no
    package of that name is installed. `asked(module)` is called for each module of that name that is not yet imported:
    False if there shall be no such module; an ImportError that it raises says why."""
    # The package itself comes last, so that an installed one is found first. Its modules come first: Python's own
    # finder would find their files, and load each of them a second time.
    sys.meta_path.append(_StandIn(name, home, asked, whole=True))
    sys.meta_path.insert(0, _StandIn(name, home, asked, whole=False))


class _StandIn:
    def __init__(self, name: str, home: str, asked: Callable[[str], bool], *, whole: bool) -> None:
        self.name, self.home, self.asked, self.whole = name, home, asked, whole

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        top, _, rest = name.partition(".")
        if top != self.name or self.whole == bool(rest):
            return None
        if rest and sys.modules.get(top) is not sys.modules.get(self.home, self):
            return None  # of an installed package
        home = f"{self.home}.{rest}" if rest else self.home
        if not self.asked(name) or importlib.util.find_spec(home) is None:
            return None
        return importlib.util.spec_from_loader(name, _Other(home))  # type: ignore[arg-type]


class _Other:
    """Puts a module into sys.modules under a second name."""

    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.home)


def _watch() -> _Finder:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder
    sys.meta_path.insert(0, finder := _Finder())
    return finder
