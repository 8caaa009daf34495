"""`DistributedOptimizer` for Keras: an optimizer that averages the gradients of all ranks before it applies them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.horovod import torch as hvd
from paceline.horovod.keras.backend import keras
from paceline.horovod.torch.mpi_ops import Average, Compression, ProcessSet, Sum, global_process_set


@dataclass(slots=True, kw_only=True)
class Reduction:
    """How the gradients of one optimizer are reduced."""

    name: str
    compression: Any = Compression.none
    op: int = Average
    predivide: float = 1.0
    passes: int = 1  # calls of apply whose gradients are added up before they are reduced
    average_passes: bool = False
    groups: int | list[list[Any]] | None = None
    process_set: ProcessSet = global_process_set
    local: set[int] = field(default_factory=set)  # ids of variables whose gradients stay on their rank
    scale_local: bool = True
    _sums: list[torch.Tensor | None] = field(default_factory=list)
    _seen: int = 0

    def add(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
        """Adds the gradients of one pass; the sums after the last pass, else None."""
        if self.passes == 1:
            return list(gradients)
        if not self._sums:
            self._sums = [None] * len(gradients)
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                before = self._sums[number]
                self._sums[number] = gradient.clone() if before is None else before.add_(gradient)
        self._seen += 1
        if self._seen < self.passes:
            return None
        found, self._sums, self._seen = self._sums, [], 0
        return [each / self.passes if self.average_passes and each is not None else each for each in found]

    def reduce(self, gradients: Sequence[torch.Tensor | None], variables: Sequence[Any]) -> list[torch.Tensor | None]:
        """The gradients of all ranks together. Every rank has a gradient of the same variables."""
        found = list(gradients)
        members = self.process_set.size() or 1
        if members == 1 and self.predivide == 1.0:
            return found
        sent: list[tuple[list[int], list[Any], Any]] = []
        with torch.no_grad():
            for number, part in enumerate(self._parts(found, variables)):
                tensors, contexts = [], []
                for index in part:
                    gradient = found[index]
                    assert gradient is not None
                    small, context = self.compression.compress(gradient.to_dense() if gradient.is_sparse else gradient)
                    tensors.append(small if small is not gradient else gradient.clone())
                    contexts.append(context)
                sent.append((part, contexts, self._submit(tensors, number, part, variables, members)))
            for part, contexts, handle in sent:
                results = hvd.synchronize(handle)
                for index, context, result in zip(part, contexts, results, strict=True):
                    found[index] = self.compression.decompress(result, context)
            if self.scale_local and self.op == Average:
                for index, variable in enumerate(variables):
                    gradient = found[index]
                    if id(variable) in self.local and gradient is not None:
                        found[index] = gradient / members
        return found

    def _submit(
        self, tensors: list[torch.Tensor], number: int, part: list[int], variables: Sequence[Any], members: int
    ) -> Any:
        name = f"{self.name}.{part[0]}.{variables[part[0]].path}" if len(part) == 1 else f"{self.name}.group{number}"
        how: dict[str, Any] = {"op": self.op, "process_set": self.process_set}
        if self.op == Average and self.predivide != 1.0:
            how |= {"op": Sum, "prescale_factor": 1 / self.predivide, "postscale_factor": self.predivide / members}
        return hvd.grouped_allreduce_async_(tensors, name=name, **how)

    def _parts(self, gradients: Sequence[torch.Tensor | None], variables: Sequence[Any]) -> Iterable[list[int]]:
        """The numbers of the gradients that are reduced, those of a group together."""
        all_numbers = [n for n, gradient in enumerate(gradients) if gradient is not None]
        shared = [n for n in all_numbers if id(variables[n]) not in self.local]
        if isinstance(self.groups, int) and self.groups > 0:
            size = -(-len(shared) // self.groups) or 1
            return [shared[first : first + size] for first in range(0, len(shared), size)]
        if isinstance(self.groups, list):
            number_of = {id(variable): n for n, variable in enumerate(variables) if n in set(shared)}
            parts = [[number_of[id(v)] for v in group if id(v) in number_of] for group in self.groups]
            grouped = {n for part in parts for n in part}
            return [*filter(None, parts), *([n] for n in shared if n not in grouped)]
        return [[n] for n in shared]


def DistributedOptimizer(  # the name is Horovod's
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new optimizer with the same settings, which reduces the gradients over all ranks before it applies them. Its
    class has the wrapped one's name, so that a saved model is loaded without Horovod. With `backward_passes_per_step`,
    weights change in every so-many-th step only. Devices and `sparse_as_dense` have no effect: gradients are reduced
    where they are, and Keras makes dense ones."""
    if num_groups:
        warnings.warn("num_groups has become groups.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    return _made(
        optimizer,
        name,
        compression=compression,
        op=op,
        predivide=gradient_predivide_factor,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
    )


def PartialDistributedOptimizer(  # the name is Horovod's
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As DistributedOptimizer, but the gradients of `local_layers` stay on their rank; with `scale_local_gradients`
    they are divided by the number of ranks."""
    layers = [local_layers] if isinstance(local_layers, keras.layers.Layer) else list(local_layers or ())
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError("local_layers: all local layers must be Keras layers.")
    return _made(
        optimizer,
        name,
        compression=compression,
        op=op,
        predivide=gradient_predivide_factor,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        local={id(variable) for layer in layers for variable in layer.trainable_weights},
        scale_local=scale_local_gradients,
    )


def distribute_in_place(optimizer: Any, **how: Any) -> None:
    """Makes this optimizer a DistributedOptimizer; its state stays."""
    kind = type(optimizer)
    reduction = Reduction(name=f"Distributed{kind.__name__}", **how)
    optimizer.__class__ = _distributed(kind)
    object.__setattr__(optimizer, "reduction", reduction)


def _made(optimizer: Any, name: str | None, **how: Any) -> Any:
    if how["op"] not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    groups = how["groups"]
    if groups is not None and not isinstance(groups, list) and groups <= 0:
        raise ValueError("groups should be a non-negative integer or a list of lists of variables.")
    kind = type(optimizer)
    made = _distributed(kind).from_config(optimizer.get_config())
    object.__setattr__(made, "reduction", Reduction(name=name or f"Distributed{kind.__name__}", **how))
    return made


def _distributed(kind: Any) -> Any:
    """A subclass with the same name and module: Keras saves these, and finds the wrapped class by them."""

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        reduction: Reduction = self.reduction
        whole = reduction.add(grads)
        if whole is None:
            return
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        kind.apply(self, reduction.reduce(whole, variables), trainable_variables)

    def register_local_var(self: Any, variable: Any) -> None:
        """From now on the gradient of this variable stays on its rank."""
        self.reduction.local.add(id(variable))

    body = {"apply": apply, "register_local_var": register_local_var}
    return type(kind.__name__, (kind,), body | {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
