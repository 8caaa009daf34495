"""Tells from a script's source, before it runs, whether it distributes itself with Horovod.

The sign is a call of `hvd.init()`: in the script, or in a module beside it that it imports at its top, and that itself
imports Horovod at its top. A call that depends on a condition of the script's own (`if args.horovod:`) tells nothing:
the script may be meant for a single process. It then starts as one, and `hvd.init()` itself says what to type. Nothing
is executed here, and no file is parsed in which the word does not occur.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import re
from pathlib import Path

NAME = "horovod"
MOST = 300  # files read; larger programs start from a package that is installed
_IMPORTS = re.compile(r"^(?:from\s+(\.*[\w.]*)\s+import\s+(\([^)]*\)|.+)|import\s+(.+))", re.MULTILINE)


def distributes_itself(script: str, *, module: bool) -> bool:
    """Whether the script calls `hvd.init()` of Paceline's Horovod. False if the real one is installed, and for a script
    that cannot be read: that error comes later, with its own words."""
    first = _module_file(script) if module else Path(script)
    if first is None or is_installed():
        return False
    folder = Path.cwd() if module else first.absolute().parent
    sources = _sources(first.absolute(), folder)
    return any(_calls_init(source, at_top=number > 0) for number, source in enumerate(sources) if NAME in source)


def is_installed() -> bool:
    """Whether the real Horovod is installed for this Python."""
    spec = importlib.machinery.PathFinder.find_spec(NAME)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def _module_file(name: str) -> Path | None:
    """The file that `python -m name` runs, if it lies below the current folder."""
    path = Path(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def _sources(first: Path, folder: Path) -> list[str]:
    """The text of the script, and of the modules in its folder that it imports, directly or through others."""
    waiting, seen = [first], {first}
    found: list[str] = []
    while waiting and len(found) < MOST:
        file = waiting.pop()
        try:
            text = file.read_bytes().decode(errors="replace")
        except OSError:
            continue
        found.append(text)
        for other in _imported(text, file, folder):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return found


def _imported(text: str, file: Path, folder: Path) -> list[Path]:
    """The files in `folder` that a source imports at its top. By its lines, not by its syntax tree: that is fast, and a
    line that is no import only names a file too many."""
    found = []
    for source, names, plain in _IMPORTS.findall(text):
        listed = [part.split()[0] for part in re.split(r"[,()]", re.sub("#.*", "", plain or names)) if part.split()]
        above = len(source) - len(source.lstrip("."))
        base = folder if not above else file.parents[above - 1]
        stem = source.lstrip(".")
        whole = [stem, *(f"{stem}.{name}".lstrip(".") for name in listed)] if not plain else listed
        for name in filter(None, whole):
            path = base.joinpath(*name.split("."))
            candidates = (path.with_suffix(".py"), path / "__init__.py") if path.name else ()
            found += [each for each in candidates if os.path.isfile(each)]
    return found


def _calls_init(source: str, *, at_top: bool) -> bool:
    """`at_top`: only imports of Horovod at the top of the file count."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    names = _Names()
    for node in tree.body if at_top else [tree]:
        if not at_top or isinstance(node, (ast.Import, ast.ImportFrom)):
            names.visit(node)
    found = _Calls(names.known)
    found.visit(tree)
    return found.certain


class _Names(ast.NodeVisitor):
    """What the file calls Horovod's modules and its `init`: each name that it binds → the full name."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == NAME:
                self.known[alias.asname or NAME] = alias.name if alias.asname else NAME

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level and node.module.split(".")[0] == NAME:
            for alias in node.names:
                if alias.name == "*":
                    self.known["init"] = f"{node.module}.init"
                else:
                    self.known[alias.asname or alias.name] = f"{node.module}.{alias.name}"


class _Calls(ast.NodeVisitor):
    """Looks for a call of `init` that does not depend on a condition, except whether Horovod could be imported."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known, self.certain = known, False

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        words = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
        if "__main__" in test or words & set(self.known):
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        pass

    def visit_Call(self, node: ast.Call) -> None:
        name = self._full_name(node.func)
        self.certain |= name.startswith(f"{NAME}.") and name.endswith(".init")
        self.generic_visit(node)

    def _full_name(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self.known.get(node.id, "")
        if isinstance(node, ast.Attribute):
            base = self._full_name(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""
