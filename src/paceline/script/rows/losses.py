"""Losses of rows: each worker computes the loss of its own rows, and one all-reduce of two numbers makes it global.

Means have the right denominators: cross-entropy counts the targets that are not ignored, by the weights of their
classes; other losses count elements, of which every row has the same number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from paceline.script.rows.elementwise import first_rows, of_own_rows
from paceline.script.rows.tensor import KNOWN, Rows
from paceline.script.slicing import crossings

# Losses of elements: the tensors among their arguments broadcast.
ELEMENTS = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.kl_div,
    F.poisson_nll_loss,
    F.soft_margin_loss,
    F.hinge_embedding_loss,
    F.margin_ranking_loss,
)
BY_ELEMENTS = ("binary_cross_entropy", "binary_cross_entropy_with_logits")  # their means ignore the weights' sum
CLASSES = (F.cross_entropy, F.nll_loss)
NAMES = {f: tuple(inspect.signature(f).parameters) for f in (*ELEMENTS, *CLASSES)}


def of_elements(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = _named(f, args, kwargs)
    reduction = given.pop("reduction", "mean")
    me = first_rows((), given)
    if me is None or reduction not in ("mean", "sum", "none", "batchmean"):
        return NotImplemented
    shapes = {value.shape for name, value in given.items() if name in ("input", "target", "input1", "input2")}
    if len(shapes) > 1:
        return NotImplemented  # broadcasts, with torch's warning
    if reduction == "mean" and given.get("weight") is not None and f.__name__ not in BY_ELEMENTS:
        return NotImplemented  # the mean is over the weights
    group = me.rows.split.group
    return group.together.do(_of_elements, f, me, given, reduction)


def _of_elements(f: Callable[..., Any], me: Rows, given: dict[str, Any], reduction: str) -> Any:
    split = me.rows.split
    made = of_own_rows(me, f, (), given | {"reduction": reduction})
    if made is NotImplemented:
        return made
    if reduction == "none":
        split.group.agree()  # a value out of range is one worker's error only: all workers must raise it
        return Rows(made, me.rows)
    if reduction == "batchmean" and me.rows.dim:  # divides by the first dimension, which is whole here
        return crossings.blend(made, 1.0, split.group)
    return crossings.blend(made, 1.0 if reduction == "sum" else split.share, split.group)


def of_classes(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = _named(f, args, kwargs)
    me, target = given.get("input"), given.get("target")
    if not isinstance(me, Rows) or me.rows.dim or me.dim() < 2 or not isinstance(target, torch.Tensor):
        return NotImplemented
    if given.get("reduction", "mean") not in ("mean", "sum", "none"):
        return NotImplemented
    if not target.dim() or target.shape[0] != me.shape[0]:
        return NotImplemented
    if isinstance(target, Rows):
        if target.rows.dim or not target.rows.has_rows_of(me.rows):
            return NotImplemented
        own = target.local
    else:
        own = me.rows.own(target)
    weight = given.get("weight")
    if isinstance(weight, Rows) or (isinstance(weight, torch.Tensor) and weight.requires_grad):
        return NotImplemented
    given |= {"input": me.local, "target": own}
    return me.rows.split.group.together.do(_of_classes, f, me, own, given)


def _of_classes(f: Callable[..., Any], me: Rows, own: torch.Tensor, given: dict[str, Any]) -> Any:
    reduction, group = given.get("reduction", "mean"), me.rows.split.group
    made = f(**given)
    if reduction == "none":
        group.agree()  # a target out of range is one worker's error only: all workers must raise it
        return Rows(made, me.rows)
    if reduction == "sum":
        return crossings.blend(made, 1.0, group)
    return crossings.mean(made, _divisor(own, given), group)


def _divisor(target: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """The number of own targets that count, or the sum of their classes' weights."""
    if target.is_floating_point():  # probabilities of classes: every row counts once
        return torch.tensor(float(target.numel() // target.shape[1]), device="cpu")
    counted = target != given.get("ignore_index", -100)
    weight = given.get("weight")
    if weight is None:
        return counted.sum()
    return (weight[target.masked_fill(~counted, 0)] * counted).sum()


def _named(f: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    names = NAMES.get(f) or NAMES[f.__wrapped__]  # type: ignore[attr-defined]
    given = dict(zip(names, args, strict=False)) | kwargs
    old = [given.pop(name, None) for name in ("size_average", "reduce")]
    if old != [None, None]:
        given["reduction"] = "unknown"
    return given


KNOWN |= dict.fromkeys(ELEMENTS, of_elements) | dict.fromkeys(CLASSES, of_classes)
