"""Writes mods into a script: as a patch if the script can be changed safely, else as lines to add by hand.

The lines come from the docstring of the mod's file, which is read and not imported, so that torch is not imported.
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

BY_HAND = "by_hand.json"  # in the record: the mods that are not in the patch


class ByHand(msgspec.Struct, kw_only=True):
    """A mod that is not in the patch, and the lines that replace it."""

    mod: str
    lines: str


class Patch(msgspec.Struct, kw_only=True):
    """`diff` is a unified diff for `patch -p0`; empty if nothing could be changed safely."""

    diff: str = ""
    source: str = ""  # the patched script
    mods: list[str] = []  # the mods in the patch
    by_hand: list[ByHand] = []


def read(script: str, *, module: bool) -> tuple[str, str]:
    """A script's path and its source, decoded as Python does. Empty if the script cannot be read."""
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
    """The patch of a source for these mods, in order, with or without a GPU. A mod is added only if the result
    compiles."""
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
    """The lines under "By hand:" in the docstring of the mod's file."""
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
    """Adds a missing newline to the last line, with the note that `diff` prints."""
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
