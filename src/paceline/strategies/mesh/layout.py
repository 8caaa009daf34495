"""Layouts as people type them: which named dimension lies on which axis of the mesh.

    batch:data; hidden:model; heads:model; vocab:model

A description names the dimensions of parameters, by patterns of their names:

    *.mlp.0.weight: hidden, embed; *.mlp.2.weight: embed, hidden

This file does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from paceline.errors import UsageError

AXES = ("data", "model")
DEFAULT = "batch:data; hidden:model; heads:model; vocab:model"
# The dimensions that the ready-made descriptions name (see `dimensions`).
NAMES = (
    *("batch", "vocab", "position", "embed", "hidden", "heads", "qkv", "in_proj", "out", "channels", "in_channels"),
    *("height", "width", "depth"),
    "tokens",  # of activations: between the layers that are split, each worker has some tokens (sequence parallelism)
)


@dataclass(frozen=True, slots=True)
class MeshLayout:
    """`axis_of` maps dimensions to axes. `asked`: the user typed it, so that what does not fit is refused; the default
    layout leaves such a tensor whole."""

    axis_of: Mapping[str, str]
    asked: bool = False
    description: tuple[tuple[str, tuple[str, ...]], ...] = field(default=())

    @classmethod
    def of(cls, layout: str, description: str = "") -> MeshLayout:
        """UsageError if the text is not a layout, or names no axis of the mesh."""
        axis_of: dict[str, str] = {}
        for rule in _rules(layout or DEFAULT):
            dimension, colon, axis = (part.strip() for part in rule.partition(":"))
            if not colon or not dimension or not axis:
                raise UsageError(f"layout: {rule!r} is not of the form dimension:axis.", advice=f"Type: {DEFAULT!r}")
            if axis not in AXES:
                raise UsageError(
                    f"layout: {rule!r} names the axis {axis!r}, which the mesh does not have.",
                    advice="The axes are: data (rows of the batch), model (parts of tensors).",
                )
            if axis_of.get(dimension, axis) != axis:
                raise UsageError(
                    f"layout: the dimension {dimension!r} lies on two axes, {axis_of[dimension]} and {axis}.",
                    advice="Leave one of the two rules out.",
                )
            if (dimension == "batch") != (axis == "data"):
                raise UsageError(
                    f"layout: {rule!r} is not possible: rows of the batch lie on the axis data, and dimensions of "
                    "parameters on the axis model.",
                    advice=f"Type: {DEFAULT!r}. Parameters are split over the axis data by --strategy sharded.",
                )
            axis_of[dimension] = axis
        if "heads" in axis_of:
            axis_of.setdefault("qkv", axis_of["heads"])  # query, key and value in one: each worker has some heads
        described = []
        for rule in _rules(description):
            pattern, colon, names = (part.strip() for part in rule.partition(":"))
            dims = tuple(name.strip() for name in names.split(","))
            if not colon or not pattern or not all(dims):
                raise UsageError(
                    f"dimensions: {rule!r} is not of the form pattern: dimension, dimension.",
                    advice="For example: dimensions='*.mlp.0.weight: hidden, embed'",
                )
            described.append((pattern, dims))
        return cls(axis_of, bool(layout), tuple(described))

    def described(self, names: Iterable[str]) -> tuple[str, ...] | None:
        """The dimensions that the description gives a parameter with these names; None if no pattern matches."""
        for pattern, dims in self.description:
            if any(fnmatchcase(name, pattern) for name in names):
                return dims
        return None

    def check_names(self, found: Iterable[str]) -> None:
        """UsageError if the layout has a dimension that no parameter of this model can have."""
        known = {*NAMES, *found, *(dim for _, dims in self.description for dim in dims)}
        for dimension in self.axis_of:
            if dimension not in known:
                raise UsageError(
                    f"layout: no parameter has the dimension {dimension!r}.",
                    advice=f"This model has: {', '.join(sorted(set(found)))}. To name others: "
                    "dimensions='PATTERN: NAME, NAME'",
                )

    def dim_on_model(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...], size: int) -> int | None:
        """The dimension of this tensor that is split over the `size` workers of the axis model; None: the tensor is
        whole. UsageError if the layout does not fit the tensor."""
        if len(dims) != len(shape):
            raise UsageError(
                f"{name} has the shape {shape}, and its description {len(dims)} dimensions: {', '.join(dims)}.",
                advice=f"Name {len(shape)} dimensions for it.",
            )
        chosen = [number for number, dim in enumerate(dims) if self.axis_of.get(dim) == "model"]
        if len(chosen) > 1:
            both = " and ".join(dims[number] for number in chosen)
            raise UsageError(
                f"{name} ({', '.join(dims)}) has two dimensions on the axis model: {both}. At most one dimension of a "
                "tensor lies on an axis.",
                advice=f"Leave one of {both} out of the layout, or give it another name: dimensions='{name}: …'",
            )
        if not chosen or size == 1:
            return None
        thirds = 3 if dims[chosen[0]] == "qkv" else 1
        if shape[chosen[0]] % (thirds * size) == 0:
            return chosen[0]
        if self.asked:
            raise UsageError(
                f"{name} ({', '.join(dims)}) of the shape {shape}: {dims[chosen[0]]} = {shape[chosen[0]]} is not "
                f"divisible by the {size} workers of the axis model.",
                advice=f"Leave {dims[chosen[0]]} out of the layout, or use a number of workers that divides "
                f"{shape[chosen[0]]}.",
            )
        return None


def _rules(text: str) -> list[str]:
    return [rule.strip() for rule in text.split(";") if rule.strip()]
