"""Whether a script's source mentions an option: its own file, and the modules beside it that it imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MOST = 30  # files that are read; a parser is rarely further away
# A parser whose options come from a library, or from the names of functions and fields: any option may be one of its.
FREE = r"HfArgumentParser|TrlParser|LightningCLI|jsonargparse|simple_parsing|hydra|omegaconf|fire|tyro|typer|absl"


def mentions(script: str, option: str, *, module: bool = False) -> bool:
    """Whether the source spells this option out, such as `-n` or `--seed`."""
    spelled = re.compile(rf"(?<![\w-]){re.escape(option)}(?![\w-])")
    return any(spelled.search(source) for source in _sources(script, module=module))


def may_have(script: str, option: str, *, module: bool = False) -> bool:
    """Whether the script may understand this option. True if its source cannot be read."""
    # argparse accepts the beginning of an option, so `--batch` may be meant for the script's `--batch-size`.
    end = "" if option.startswith("--") else r"(?![\w-])"
    spelled = re.compile(rf"(?<![\w-]){re.escape(option)}{end}")
    files = list(_sources(script, module=module))
    return not files or any(spelled.search(source) or re.search(rf"\b({FREE})\b", source) for source in files)


def _sources(script: str, *, module: bool) -> Iterator[str]:
    start = Path(*script.split(".")).with_suffix(".py") if module else Path(script)
    waiting, seen = [start], {start}
    while waiting and len(seen) <= MOST:
        path = waiting.pop(0)
        try:
            source = path.read_text(errors="replace")
        except OSError:
            continue
        yield source
        for near in _imported(source, path.parent):
            if near not in seen:
                seen.add(near)
                waiting.append(near)


def _imported(source: str, folder: Path) -> Iterator[Path]:
    """Files beside the script, or below the current folder, that the source imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = node.module or ""
            names = [inside, *(f"{inside}.{alias.name}".strip(".") for alias in node.names)]
        for name in filter(None, names):
            for home in (folder, Path()):
                path = home.joinpath(*name.split(".")).with_suffix(".py")
                if path.is_file():
                    yield path
