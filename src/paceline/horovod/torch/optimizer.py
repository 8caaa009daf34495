"""`DistributedOptimizer`: the script's optimizer, with gradients or updates that are combined over the ranks.

The wrapped optimizer becomes an instance of a new class with the same name, derived from its class, that shares its
parameters and its state.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from paceline.horovod.common import basics
from paceline.horovod.common.process_sets import ProcessSet, global_process_set
from paceline.horovod.torch.adasum_updates import AdasumUpdates
from paceline.horovod.torch.averaged_gradients import AveragedGradients
from paceline.horovod.torch.compression import Compression
from paceline.horovod.torch.mpi_ops import Adasum, Average


def wrap(optimizer: Any, mixin: type) -> Any:
    """An instance of a class with the optimizer's name, derived from `mixin` and the optimizer's class, with the
    optimizer's own attributes. Its constructor is not called again: not every optimizer can be made of its groups."""
    base = type(optimizer)
    new: Any = type(base.__name__, (mixin, base), {"__module__": mixin.__module__})
    wrapped = new.__new__(new)
    # A learning-rate scheduler puts a `step` of its own on an instance: it would step the optimizer that is wrapped.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    return wrapped


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer, with gradients that are reduced over the ranks before each step.

    `named_parameters` names the reductions; usually `model.named_parameters()`. `backward_passes_per_step`: that many
    backward passes are added up before a reduction. `gradient_predivide_factor` divides before the sum, and multiplies
    by it after the average. `groups`: a number of groups, or lists of parameters whose gradients are reduced together.
    `sparse_as_dense`: sparse gradients are reduced as dense ones. `process_set`: only its ranks take part."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.",
            DeprecationWarning,
            stacklevel=2,
        )
        groups = num_groups if groups is None else groups
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if op == Adasum and basics.size() > 1:
        if process_set.process_set_id != 0:
            raise NotImplementedError("Adasum does not support non-global process sets yet.")
        wrapped = wrap(optimizer, AdasumUpdates)
        wrapped._distribute(named_parameters, compression, backward_passes_per_step)
        return wrapped
    wrapped = wrap(optimizer, AveragedGradients)
    wrapped._distribute(
        named_parameters,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        groups,
        sparse_as_dense,
        process_set,
    )
    return wrapped
