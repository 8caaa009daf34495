"""Makes branches by the clock equal on all workers: where a read of the clock may decide what the script does next,
every worker gets rank 0's.

    while time.time() - start < budget: …        both reads of the clock: that of `start`, too
    print(f"{time.time() - start:.1f} s")         none: each worker reads its own clock, and nothing is sent

Which lines these are is read off the text of the script's own files: conditions, what loops go over, what functions
return, and what is assigned to a name that one of these mentions. Names stand for themselves wherever they are, so a
line too many may be found, which costs one message a read. Not for `datetime.now()`, whose class cannot be patched, and
not for what a library does by the clock.
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from paceline.comm.group import Group

CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
DECISIONS = (ast.If, ast.While, ast.IfExp, ast.Assert)


def agreed(
    group: Group, is_in_order: Callable[[], bool], is_the_scripts: Callable[[str], bool]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The functions to put in the place of those of `time`, by name. `is_in_order`: whether all workers make this call,
    in the same order."""

    def of_rank_0(plain: Callable[[], Any], kind: torch.dtype) -> Callable[[], Any]:
        def read() -> Any:
            frame: Any = sys._getframe(1)
            file, now = frame.f_code.co_filename, plain()
            if not is_the_scripts(file) or frame.f_lineno not in _deciding(file) or not is_in_order():
                return now
            told = torch.tensor(now, dtype=kind, device="cpu").view(1)
            group.broadcast(told, f"the clock at {file}:{frame.f_lineno}")
            return told.item()

        return read

    for name in CLOCKS:
        yield name, of_rank_0(getattr(time, name), torch.float64)
        yield f"{name}_ns", of_rank_0(getattr(time, f"{name}_ns"), torch.int64)


@cache
def _deciding(file: str) -> frozenset[int]:
    """The lines of a file on which a value that is read may decide a branch."""
    try:
        with open(file, "rb") as text:
            tree = ast.parse(text.read())
    except (OSError, SyntaxError, ValueError):  # made by code
        return frozenset()
    decide, assigned = list(_decisions(tree)), list(_assignments(tree))
    needed: set[str] = set()
    for expression in decide:  # grows while it is walked
        needed |= _names(expression)
        found = [(targets, value) for targets, value in assigned if targets & needed]
        decide += [value for _, value in found]
        assigned = [one for one in assigned if one not in found]
    return frozenset(line for e in decide for line in range(e.lineno, (e.end_lineno or e.lineno) + 1))


def _decisions(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, DECISIONS):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from (node.iter, *node.ifs)
        elif isinstance(node, ast.For):
            yield node.iter
        elif isinstance(node, ast.Match):
            yield node.subject
        elif isinstance(node, ast.Return | ast.Yield) and node.value is not None:
            yield node.value


def _assignments(tree: ast.AST) -> Iterator[tuple[set[str], ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield set().union(*map(_names, node.targets)), node.value
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield _names(node.target), node.value


def _names(expression: ast.AST) -> set[str]:
    """The names and attributes that an expression mentions."""
    nodes = list(ast.walk(expression))
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    return named | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
