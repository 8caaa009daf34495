"""The code that a person would add to keep mods by hand: a patch where a script can be changed safely, else the lines
that the mod's own file gives.

Imports no torch: a mod's docstring is read, not imported.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import textwrap
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from paceline.trials.tune import rewrites
from paceline.trials.tune.candidates import name_of
from paceline.trials.tune.rewrites import Script


class ByHand(msgspec.Struct, kw_only=True):
    """A mod that is not in the patch, and the lines that keep it."""

    mod: str
    lines: str


class Patch(msgspec.Struct, kw_only=True):
    """`diff` is a unified one, for `patch -p0`; empty where nothing could be changed safely."""

    diff: str = ""
    source: str = ""  # the script with it
    mods: list[str] = []  # that are in it
    by_hand: list[ByHand] = []


def read(script: str, *, module: bool) -> tuple[str, str]:
    """A script's path and its source, as Python would read it. Empty where it cannot be read."""
    path = script
    try:
        if module:
            found = importlib.util.find_spec(script)
            path = found.origin or "" if found else ""
        with tokenize.open(path) as file:
            return path, file.read()
    except (OSError, SyntaxError, ImportError, ValueError):
        return path, ""


def write_patch(path: str, source: str, mods: Sequence[str], *, cuda: bool = False) -> Patch:
    """The patch against a source for these mods, in their order, on a GPU or not. Each is put in only if what comes of
    it compiles."""
    found = Patch(source=source)
    for mod in mods:
        changed = _rewritten(found.source, mod, cuda=cuda)
        if changed is None:
            found.by_hand.append(ByHand(mod=mod, lines=by_hand(mod)))
        else:
            found.source = changed
            found.mods.append(mod)
    if found.mods:
        before, after = source.splitlines(keepends=True), found.source.splitlines(keepends=True)
        found.diff = "".join(_ended(line) for line in difflib.unified_diff(before, after, path, path))
    return found


def by_hand(mod: str) -> str:
    """The lines that a mod's own file gives for it."""
    spec = importlib.util.find_spec(f"paceline.mods.{name_of(mod)}")
    if spec is None or spec.origin is None:
        return ""
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
    return textwrap.dedent(text.partition("By hand:")[2]).strip("\n")


def _rewritten(source: str, mod: str, *, cuda: bool) -> str | None:
    rewrite = _rewrite(mod, cuda=cuda)
    if rewrite is None or not source:
        return None
    try:
        changed = rewrite(Script(source))
        if changed is not None:
            compile(changed, "script", "exec")
    except (SyntaxError, ValueError):
        return None
    return changed


def _rewrite(mod: str, *, cuda: bool) -> Callable[[Script], str | None] | None:
    value = mod.partition("=")[2]
    match name_of(mod):
        case "cudnn_benchmark":
            return rewrites.after_imports("torch.backends.cudnn.benchmark = True")
        case "tf32":
            return rewrites.after_imports(
                'torch.set_float32_matmul_precision("high")', "torch.backends.cudnn.allow_tf32 = True"
            )
        case "threads" if value.isdigit():
            return rewrites.after_imports(f"torch.set_num_threads({value})")
        case "fused_optimizer":
            return rewrites.fused_optimizer
        case "loader" if value.isdigit():
            return rewrites.loader(value, pinned=cuda)
        case "channels_last":
            return rewrites.on_model("{model}.to(memory_format=torch.channels_last)")
        case "compile":
            mode = "" if value in ("", "default") else f'mode="{value}"'
            return rewrites.on_model("{model}.compile(" + mode + ")")
        case "precision" if value in ("", "bf16"):
            return rewrites.precision
    return None


def _ended(line: str) -> str:
    """A last line without a newline gets one, and says so, as `diff` does."""
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
