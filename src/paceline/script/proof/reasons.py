"""Why a module is not computed in slices, in words."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import torch
from torch import nn

from paceline.errors import NotSplitError
from paceline.script import tree
from paceline.script.proof.graphs import has_links
from paceline.script.proof.plan import Unbatched
from paceline.script.proof.ways import Way, can_be_cut
from paceline.torch_private import uncompiled

SLICE_VIEW = "To let every worker see only its own slice, as under DDP: --mod view=slice"


def describe(module: nn.Module) -> str:
    return f"The module {name_of(module)}"


def name_of(module: nn.Module) -> str:
    return type(uncompiled(module)).__name__


def cause_of(told: str) -> str:
    """What several notices have in common: the line of the operation that they name, or else their words."""
    lines = re.findall(r"\(([^\s()]+:\d+)\)", told)
    return str(lines[-1]) if lines else told.partition(": ")[2]


def line_of_script() -> str:
    """The innermost running line of the script's own file, as file:line; empty if there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__" and frame.f_globals.get("__file__"):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def unbatched(module: nn.Module, given: Any, leaves: list[Any]) -> Unbatched | None:
    """That a call has no batch that could be split: one sample, or sparse tensors only. None if it may have one, or if
    it has no tensor."""
    tensors = [(i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    dense = [(i, leaf) for i, leaf in tensors if can_be_cut(leaf)]
    if not tensors:
        return None
    if not dense:
        kinds = " and ".join(sorted({f"layout {leaf.layout}" if leaf.dim() else "no dimension" for _, leaf in tensors}))
        return Unbatched(f"{describe(module)} gets no tensor that can be cut into rows ({kinds}).")
    i, leaf = dense[0]
    found = f"{_names(given)[i]} has the shape {tuple(leaf.shape)}"
    if all(tensor.dim() == 1 for _, tensor in dense):
        return Unbatched(f"{describe(module)} gets vectors, which cannot be cut into samples: {found}.")
    return Unbatched(f"{describe(module)} gets one sample at a time: {found}.") if leaf.shape[0] == 1 else None


def refusal(
    module: nn.Module, given: Any, leaves: list[Any], ways: list[Way], why: str, batch_dim: int = 0
) -> NotSplitError:
    """Why no way of cutting the arguments works, and the option that helps. `batch_dim`: what the user has said."""
    batch_leaf = ways[0][0]
    shape = tuple(leaves[batch_leaf].shape)
    tried = sorted({cuts[first] for first, cuts in ways if first == batch_leaf})
    dims = f"dimension{'s' if len(tried) > 1 else ''} {' and '.join(map(str, tried))}"
    if has_links(leaves):  # a loader that hands out slices would cut the graph
        return NotSplitError(f"{describe(module)} is not computed in slices: {why.rstrip('.')}.")
    is_elsewhere = len(shape) > len(tried) and not batch_dim and why.startswith("tried")
    return NotSplitError(
        f"{describe(module)} is not computed in slices: {why.rstrip('.')}.\n"
        f"It was tried along {dims} of {_names(given)[batch_leaf]}, shape {shape}.",
        advice="If the batch is another dimension: --batch-dim N" if is_elsewhere else SLICE_VIEW,
    )


def _names(given: Any) -> list[str]:
    return tree.paths(given[0], "argument ") + tree.paths(given[1], "argument ")
