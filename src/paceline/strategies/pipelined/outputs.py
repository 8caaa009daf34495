"""The output of the last stage as a plain value, from which every other stage builds the same output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from paceline.script import tree


def gradient_name(output: Any) -> str:
    """The name of the output's gradient function, which `print` shows."""
    tensor = next((t for t in tree.leaves(output) if isinstance(t, torch.Tensor) and t.grad_fn is not None), None)
    return "" if tensor is None else type(tensor.grad_fn).__name__


def nest(output: Any, template: Any) -> Any:
    """A plain value from which every worker can build the output: None if that is not possible."""
    if isinstance(output, torch.Tensor):
        return {"tensor": True}
    if type(output) in (list, tuple) or (type(output) is dict and all(isinstance(key, str) for key in output)):
        items = output.items() if isinstance(output, dict) else enumerate(output)
        inner = [[key, nest(item, None)] for key, item in items]
        if all(item is not None for _, item in inner):
            return {"kind": type(output).__name__, "items": inner}
    if isinstance(output, (bool, int, float, str, type(None))):
        return {"plain": output}
    if template is None or tree.structure(output) != tree.structure(template):
        return None
    plain = all(leaf is None or isinstance(leaf, torch.Tensor) for leaf in tree.leaves(output))
    return {"template": True} if plain else None


def rebuilt(nested: Any, template: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The output, with these tensors."""
    if "tensor" in nested:
        return next(tensors)
    if "plain" in nested:
        return nested["plain"]
    if "template" in nested:
        return tree.replace(template, lambda leaf: next(tensors) if isinstance(leaf, torch.Tensor) else leaf)
    items = [(key, rebuilt(item, None, tensors)) for key, item in nested["items"]]
    if nested["kind"] == "dict":
        return dict(items)
    return (list if nested["kind"] == "list" else tuple)(item for _, item in items)
