"""The names by which an optimizer's gradients are reduced."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

NOT_PAIRS = (
    "named_parameters should be a sequence of tuples (name, parameter), usually produced by model.named_parameters()."
)


def name_parameters(param_groups: list[dict[str, Any]], named_parameters: Any) -> dict[torch.Tensor, str]:
    """The name of each parameter of the groups. Without `named_parameters`, made of their places. ValueError for names
    that appear twice, and for parameters without a name."""
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(param_groups)
            for j, parameter in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(NOT_PAIRS)
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    names = {parameter: name for name, parameter in pairs}
    unnamed = [p for group in param_groups for p in group["params"] if p not in names]
    if unnamed:
        shapes = ", ".join(str(list(p.shape)) for p in unnamed)
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. Their shapes: " + shapes
        )
    return names
