"""`DistributedOptimizer`: the script's optimizer, with gradients or updates that are combined over the ranks.

The wrapped optimizer becomes an instance of a new class with the same name, derived from its class, that shares its
parameters and its state.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.horovod.common import basics
from paceline.horovod.common.process_sets import ProcessSet, global_process_set
from paceline.horovod.common.util import split_list
from paceline.horovod.torch.compression import Compression
from paceline.horovod.torch.functions import broadcast_object
from paceline.horovod.torch.mpi_ops import (
    Adasum,
    Average,
    allreduce_async_,
    grouped_allreduce_async_,
    hurry,
    sparse_allreduce_async,
    synchronize,
)


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


# -- names ------------------------------------------------------------------------------------------------------------


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


# -- averages of gradients --------------------------------------------------------------------------------------------


TOO_MANY = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally."
)
IN_FLIGHT = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
NOT_SKIPPED = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). This can "
    "cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you use "
    "optimizer.synchronize() in your code."
)

Group = tuple[torch.Tensor, ...]


class AveragedGradients:
    """What is added to the wrapped optimizer's class. Tensors are keys by identity, as torch hashes them."""

    param_groups: list[dict[str, Any]]

    def _distribute(
        self,
        named_parameters: Any,
        compression: Any,
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: Any,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._parameter_names = name_parameters(self.param_groups, named_parameters)
        self._compression, self.op, self.process_set = compression, op, process_set
        self.backward_passes_per_step = backward_passes_per_step
        self.gradient_predivide_factor, self.sparse_as_dense = gradient_predivide_factor, sparse_as_dense
        self._passes_left = dict.fromkeys(self._parameter_names, backward_passes_per_step)
        self._handles: dict[Group, tuple[Any, Any]] = {}  # handle and contexts of the compressor, of what is in flight
        self._counted: set[torch.Tensor] = set()  # with a gradient that is not yet submitted
        self._in_flight = 0  # parameters whose gradients are submitted
        self._synchronized, self._should_synchronize = False, True
        self._requires_update: list[torch.Tensor] = []
        self._group_of: dict[torch.Tensor, Group] = {}
        self._hooks: list[Any] = []
        _check_groups(groups)
        if process_set.included() and basics.size() > 1:
            self._register_hooks(groups)

    def _register_hooks(self, groups: Any) -> None:
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        for group in self._form_groups(parameters, groups):
            for parameter in group:
                self._group_of[parameter] = group
        for parameter in parameters:
            self._requires_update.append(parameter)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._on_gradient))

    def _form_groups(self, parameters: list[torch.Tensor], groups: Any) -> list[Group]:
        if not groups:
            return [(parameter,) for parameter in parameters]
        # Ranks may have the parameters in different orders: rank 0's counts.
        names = [self._parameter_names[parameter] for parameter in parameters]
        first = self.process_set.ranks[0] if self.process_set.ranks else 0
        order = {name: at for at, name in enumerate(broadcast_object(names, first, "groups", self.process_set))}
        parameters = sorted(parameters, key=lambda p: order[self._parameter_names[p]])
        if isinstance(groups, int):
            formed = [tuple(part) for part in split_list(parameters, min(groups, len(parameters)))]
        else:
            known = set(parameters)
            formed = [tuple(p for p in group if p in known) for group in groups]
            grouped = {p for group in formed for p in group}
            formed += [(p,) for p in parameters if p not in grouped]
        return [group for group in formed if group]

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Called by backward as soon as the gradient of the parameter is there."""
        if self._passes_left[parameter] <= 0:
            raise AssertionError(TOO_MANY)
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] > 0:
            return
        group = self._group_of[parameter]
        self._counted.add(parameter)
        if len(group) == 1 or self._counted.issuperset(group):
            self._submit(group)
            if self._in_flight == len(self._requires_update):
                hurry()  # the last one: nothing is gained by collecting more

    def _submit(self, group: Group) -> None:
        self._counted.difference_update(group)
        self._in_flight += len(group)
        for parameter in group:
            if parameter.grad is None:
                # Another rank may have computed it: models may choose their layers for each batch.
                parameter.grad = torch.zeros_like(parameter)
        name = self._parameter_names[group[0]]
        if any(parameter.grad.is_sparse for parameter in group):  # type: ignore[union-attr]
            for parameter in group:
                self._handles[(parameter,)] = self._submit_one(parameter, self._parameter_names[parameter])
        elif len(group) == 1:
            self._handles[group] = self._submit_one(group[0], name)
        else:
            small, contexts = zip(*(self._compression.compress(_dense(p.grad)) for p in group), strict=True)
            self._handles[group] = grouped_allreduce_async_(small, name=name, **self._reduction()), contexts

    def _submit_one(self, parameter: torch.Tensor, name: str) -> tuple[Any, Any]:
        grad: Any = parameter.grad
        if grad.is_sparse and not self.sparse_as_dense:
            return sparse_allreduce_async(grad, name, self.op, self.process_set), None
        small, context = self._compression.compress(_dense(grad))
        return allreduce_async_(small, name=name, **self._reduction()), (context,)

    def _reduction(self) -> dict[str, Any]:
        factor = self.gradient_predivide_factor if self.op == Average else 1.0
        return {
            "op": self.op,
            "prescale_factor": 1.0 / factor,
            "postscale_factor": factor,
            "process_set": self.process_set,
        }

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients of so many backward passes are added up before they are averaged."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._passes_left, passes)

    def synchronize(self) -> None:
        """Waits until all gradients are averaged. Gradients that this rank has not computed count as zero."""
        if self.process_set.included():
            in_flight = {parameter for group in self._handles for parameter in group}
            for parameter in self._requires_update:
                if parameter not in in_flight:
                    self._submit(self._group_of[parameter])
                    in_flight.update(self._group_of[parameter])
            for group, (handle, contexts) in self._handles.items():
                self._put_back(group, handle, contexts)
            self._handles.clear()
            self._in_flight = 0
        self._synchronized = True

    @torch.no_grad()
    def _put_back(self, group: Group, handle: Any, contexts: Any) -> None:
        result = handle() if callable(handle) else synchronize(handle)
        for parameter in group:
            self._passes_left[parameter] = self.backward_passes_per_step
        if contexts is None:  # sparse
            group[0].grad = result
            return
        results = result if len(group) > 1 else (result,)
        for parameter, each, context in zip(group, results, contexts, strict=True):
            average = self._compression.decompress(each, context)
            if parameter.grad.is_sparse:  # type: ignore[union-attr]
                parameter.grad = average.to_sparse()
            elif average.data_ptr() != parameter.grad.data_ptr():  # type: ignore[union-attr]
                parameter.grad.copy_(average)  # type: ignore[union-attr]

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside it, step() does not synchronize: after a synchronize() of your own, to clip gradients.

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronizes, then steps as the wrapped optimizer does."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(NOT_SKIPPED, stacklevel=2)
            self.synchronize()
        self._synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's, with set_to_none. AssertionError while gradients are in flight."""
        if self._handles:
            raise AssertionError(IN_FLIGHT)
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._handles.clear()
        self._counted.clear()
        self._in_flight = 0
        self._synchronized, self._should_synchronize = False, True
        self._passes_left = dict.fromkeys(self._passes_left, self.backward_passes_per_step)
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]


def _dense(grad: Any) -> torch.Tensor:
    dense: torch.Tensor = grad.to_dense() if grad.is_sparse else grad
    return dense if dense.is_contiguous() else dense.contiguous()


def _check_groups(groups: Any) -> None:
    if groups is None:
        return
    if not isinstance(groups, (int, list)) or (isinstance(groups, int) and groups < 0):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    if isinstance(groups, list):
        seen: set[torch.Tensor] = set()
        for parameter in (parameter for group in groups for parameter in group):
            if not isinstance(parameter, torch.Tensor):
                raise ValueError("groups must consist of torch.Tensor.")
            if parameter in seen:
                raise ValueError("A parameter can only appear once in groups.")
            seen.add(parameter)


# -- Adasum: sums of updates ------------------------------------------------------------------------------------------
# Each rank steps the wrapped optimizer on its own gradient. The changes of the parameters are combined by Adasum, and
# added to the parameters as they were before.


class AdasumUpdates:
    """What is added to the wrapped optimizer's class."""

    param_groups: list[dict[str, Any]]

    def _distribute(self, named_parameters: Any, compression: Any, backward_passes_per_step: int) -> None:
        self._parameter_names = name_parameters(self.param_groups, named_parameters)
        self._compression, self.backward_passes_per_step = compression, backward_passes_per_step
        self._passes_left = dict.fromkeys(self._parameter_names, backward_passes_per_step)
        self._handles: dict[torch.Tensor, tuple[int, Any]] = {}
        self._starts: dict[torch.Tensor, torch.Tensor] = {}
        self._requires_update = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in self._requires_update]

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._passes_left[parameter] <= 0:
            raise AssertionError(TOO_MANY)
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._submit(parameter)

    @torch.no_grad()
    def _submit(self, parameter: torch.Tensor) -> None:
        """Steps on this parameter alone, and sends its change. The parameter holds the change until `step`."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        self._starts[parameter] = start = parameter.detach().clone()
        stashed = [group["params"] for group in self.param_groups]
        for group in self.param_groups:
            group["params"] = [p for p in group["params"] if p is parameter]
        try:
            super().step()  # type: ignore[misc]
        finally:
            for group, parameters in zip(self.param_groups, stashed, strict=True):
                group["params"] = parameters
        change = parameter.detach() - start
        parameter.copy_(start)
        small, context = self._compression.compress(change)
        name = self._parameter_names[parameter]
        self._handles[parameter] = allreduce_async_(small, name=name, op=Adasum), context

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients of so many backward passes are added up before a step."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._passes_left, passes)

    def synchronize(self) -> None:
        """Does nothing: the gradients stay each rank's own."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the combined changes, and adds them to the parameters."""
        loss = closure() if closure is not None else None
        for parameter in self._requires_update:
            if parameter not in self._handles:
                self._submit(parameter)
        with torch.no_grad():
            for parameter, (handle, context) in self._handles.items():
                parameter.copy_(self._starts[parameter] + self._compression.decompress(synchronize(handle), context))
                self._passes_left[parameter] = self.backward_passes_per_step
        self._handles.clear()
        return loss

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's, with set_to_none. AssertionError while changes are in flight."""
        if self._handles:
            raise AssertionError(IN_FLIGHT)
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]
