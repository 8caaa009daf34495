"""Applies FSDP2 to a model: one unit for each repeated block, and one for the rest of the model.

Before a unit's call its parameters are gathered, after it they are freed, and in backward both happen again; its
gradients are averaged over the workers, each worker keeping its part. All messages go through the torch process group
of the run, announced by `Group.waiting`: so the stall inspector sees them, and a worker that fails in the middle of a
model's call is found by the others at their next message.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from paceline.agreement.digest import digest
from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.repeated_blocks import repeated_blocks
from paceline.torch_private import (
    after_fsdp_call,
    before_fsdp_call,
    fsdp_groups,
    fsdp_state,
    is_fsdps_attribute,
    is_fsdps_hook,
    is_transformed,
    parameters_in,
    pytree_leaves,
    remove_fsdp_hooks,
    reset_fsdp,
    reset_fsdp_unit,
)

HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_load_state_dict_post_hooks", "_load_state_dict_pre_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
)

LOOKS = 4  # calls of a unit whose parameters are compared by value: two of them are dry runs
# Newer versions of torch have renamed these two.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


_UNITS: weakref.WeakKeyDictionary[nn.Module, Units] = weakref.WeakKeyDictionary()  # which a unit belongs to


class Units:
    """The units of one root module."""

    def __init__(
        self,
        module: nn.Module,
        mesh: Any,
        group: Group,
        copies: Group | None,
        whole: Callable[[DTensor], torch.Tensor],
        *,
        offload: bool,
    ) -> None:
        """`mesh`: of the workers that hold the parts of one copy. `group`: all workers. `copies`: the workers that hold
        the same part of each copy, if there are several copies."""
        self.module, self.group, self._whole = module, group, whole
        kept = left_whole(module)
        blocks = [block for block in repeated_blocks(module) if block is not module and _is_free(block)]
        shared = _shared(module, blocks)
        policy: Any = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if offload else OffloadPolicy()
        settings: Any = {"mesh": mesh, "reshard_after_forward": True, "offload_policy": policy}
        self.units: list[Any] = [*blocks, module]
        self._versions: dict[int, Any] = {}
        self._calls: dict[int, int] = {}
        for block in blocks:
            fully_shard(block, ignored_params=kept | shared, **settings)
        fully_shard(module, ignored_params=kept, **settings)
        for unit in self.units:
            unit.set_custom_all_gather(_Gathering(group))
            unit.set_custom_reduce_scatter(_Scattering(group, copies))
            if not group.is_private:  # Gloo cannot average
                unit.set_force_sum_reduction_for_comms(True)
            for params in fsdp_groups(unit):
                params.post_backward = _reaching_all(params, params.post_backward, group)
            _behave_as_plain(type(unit), self)
            _UNITS[unit] = self
            remove_fsdp_hooks(unit)
        fsdp_state(module)._lazy_init()  # otherwise a block that is called first would become the root
        for unit in self.units:  # gathered once, so that torch makes the whole parameters outside of inference mode
            unit.unshard()
            unit.reshard()

    @property
    def parameters(self) -> Iterator[Any]:
        """What FSDP2 holds about each sharded parameter."""
        for unit in self.units:
            for params in fsdp_groups(unit):
                yield from params.fsdp_params

    def reset(self) -> None:
        """A call or a backward raised: frees what was gathered."""
        reset_fsdp(self.module)

    def reset_within(self, module: nn.Module) -> None:
        """A part's call raised, and the model's call goes on."""
        inner = set(module.modules())
        for unit in self.units:
            if unit in inner:
                reset_fsdp_unit(unit)

    def reduce_late(self) -> None:
        """After a backward: averages gradients that came after their unit had been reduced (a penalty on a weight,
        inside the model)."""
        for unit in self.units:
            for params in fsdp_groups(unit):
                if any(_late(held) for held in params.fsdp_params):
                    params.post_backward()
                    params.finalize_backward()

    # -- around a unit's call --------------------------------------------------------------------------------------

    def look(self) -> str:
        """The name of a parameter that the script has replaced; empty if there is none."""
        for held in self.parameters:
            info = held._module_info
            found = info.module._parameters.get(info.param_name)
            if found is not None and found is getattr(held, "_unsharded_param", None):
                self.reset()  # a call inside a backward (a solver's adjoint) has left it gathered
            elif found is not held.sharded_param:
                return str(held._param_fqn or info.param_name)
        return ""

    def call(self, plain: Callable[..., Any], unit: nn.Module, args: Any, kwargs: Any) -> Any:
        """A unit's call, with the hooks that the script has set on it: its parameters are gathered before the first
        hook, and freed after the last one. torch's own hooks would stand among the script's, which may count them."""
        args, kwargs = before_fsdp_call(unit, args, kwargs)
        self._before(unit)
        output = self._after(unit, plain(unit, *args, **kwargs))
        return after_fsdp_call(unit, args, output)

    def _before(self, unit: nn.Module) -> None:
        if is_transformed():
            raise refusal("torch.func on a model", "transforms: they replace parameters")
        held = [p._unsharded_param for params in fsdp_groups(unit) for p in params.fsdp_params]
        self._versions[id(unit)] = _state_of(held, thorough=self._calls.setdefault(id(unit), 0) < LOOKS)
        for parameter in held:
            parameter._paceline_gathered = True

    def _after(self, unit: nn.Module, output: Any) -> Any:
        held = [p._unsharded_param for params in fsdp_groups(unit) for p in params.fsdp_params]
        before, thorough = self._versions.pop(id(unit), None), self._calls[id(unit)] < LOOKS
        if before is not None and before != _state_of(held, thorough=thorough):
            raise ScriptError(
                f"The model changes parameters of {type(unit).__name__} inside its forward, and --strategy sharded "
                "cannot keep such a change.",
                advice="Use --strategy mirrored.",
            )
        self._calls[id(unit)] += 1
        if torch.is_grad_enabled():
            output = tree.replace(output, _no_view)
            known = {id(leaf) for leaf in pytree_leaves(output)}
            left = (value for inner in unit.modules() for value in vars(inner).values())
            found = [leaf for leaf in (*tree.leaves(output), *left) if isinstance(leaf, torch.Tensor)]
            more = [leaf for leaf in found if id(leaf) not in known and leaf.grad_fn is not None]
            if more:  # torch looks for outputs in tuples, lists and dicts only
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about views
                    fsdp_state(unit)._register_pre_backward_hook(more)
        return output


def left_whole(module: nn.Module) -> set[nn.Parameter]:
    """Parameters that stay whole on every worker, because FSDP2 cannot hold them: numbers, other types than most
    parameters have, other memory layouts, sparse gradients, parameters with hooks of the script."""
    parameters = [p for p in parameters_in(module) if not is_lazy(p)]
    counts: dict[torch.dtype, int] = {}
    for p in parameters:
        counts[p.dtype] = counts.get(p.dtype, 0) + p.numel()
    sparse = {p for m in module.modules() if getattr(m, "sparse", False) for p in parameters_in(m, recurse=False)}
    usual = max(counts, key=lambda dtype: counts[dtype], default=None)
    return {
        p
        for p in parameters_in(module)
        if is_lazy(p)
        or p in sparse
        or not p.dim()
        or not p.is_contiguous()
        or p.dtype is not usual
        or p.is_meta
        or type(p) not in (nn.Parameter, DTensor)  # one that is split over the axis model is a DTensor already
        or getattr(p, "_backward_hooks", None)
        or getattr(p, "_post_accumulate_grad_hooks", None)
    }


def _is_free(block: nn.Module) -> bool:
    return not any(isinstance(inner, FSDPModule) for inner in block.modules())


def _shared(module: nn.Module, blocks: list[nn.Module]) -> set[nn.Parameter]:
    """Parameters that occur in several blocks, or in a block and outside of it: the root gathers them."""
    inside = [set(parameters_in(block)) for block in blocks]
    within = {id(inner) for block in blocks for inner in block.modules()}
    outside = {p for inner in module.modules() if id(inner) not in within for p in parameters_in(inner, recurse=False)}
    counts: dict[nn.Parameter, int] = {}
    for some in (*inside, outside):
        for p in some:
            counts[p] = counts.get(p, 0) + 1
    return {p for p, count in counts.items() if count > 1}


def refusal(what: str, kind: str) -> ScriptError:
    return ScriptError(
        f"The script uses {what}, and --strategy sharded has no {kind}.", advice="Use --strategy mirrored."
    )


def _state_of(parameters: list[torch.Tensor], *, thorough: bool) -> list[Any]:
    """What tells whether parameters have changed. `thorough`: also by way of `.data`, which has no version."""
    found = digest(getattr(p, "_local_tensor", p) for p in parameters) if thorough else []
    return [*(parameter._version for parameter in parameters), *(int(number) for number in found)]


def _no_view(leaf: Any) -> Any:
    """torch would lose its hook on an output that is a view, if the script changed the output in place."""
    is_view = isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf._base is not None
    return leaf.clone() if is_view else leaf


def _late(held: Any) -> bool:
    return hasattr(held, "_unsharded_param") and held._unsharded_param.grad is not None


def _reaching_all(params: Any, plain: Callable[..., None], group: Group) -> Callable[..., None]:
    """A parameter that only another worker's rows used gets a gradient of zeros here before the average; one that no
    worker used keeps None."""

    def post_backward(*unused: Any) -> None:
        if group.world > 1:
            held = [p for p in params.fsdp_params if hasattr(p, "_unsharded_param")]
            mine = torch.tensor([_late(p) for p in held], dtype=torch.uint8, device="cpu")
            reached = group.gather_vectors(mine, "which parameters of a block were used").max(0).values.tolist()
            for one, used in zip(held, reached, strict=True):
                if used and one._unsharded_param.grad is None:
                    one._unsharded_param.grad = torch.zeros_like(one._unsharded_param)
        plain(*unused)

    return post_backward


class _Gathering:
    """FSDP2's all-gather, as `torch.distributed.fsdp` asks for it."""

    what = "the parameters of a block"

    def __init__(self, group: Group) -> None:
        self._group = group

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        with self._group.waiting(self.what, asks=True):
            return _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class _Scattering(_Gathering):
    """FSDP2's reduce-scatter, and the average over the copies of the model."""

    what = "the gradients of a block"

    def __init__(self, group: Group, copies: Group | None) -> None:
        super().__init__(group)
        self._copies = copies

    def __call__(  # type: ignore[override]
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        with self._group.waiting(self.what, asks=True):
            work = _reduce_scatter(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op and self._copies is None
            )
        if self._copies is not None:
            self._copies.all_reduce(output_tensor, self.what)
            output_tensor.div_(self._copies.world)
        return work


# -- a unit's class is made by torch: it must look like the script's own ---------------------------------------------


def _behave_as_plain(kind: Any, units: Units) -> None:
    """The class keeps its name, and a copy of the model is a plain, whole model."""
    plain = kind.__mro__[2]
    if kind.__name__ != plain.__name__:
        kind.__name__, kind.__qualname__, kind.__module__ = plain.__name__, plain.__qualname__, plain.__module__
        kind.__deepcopy__ = lambda self, memo: plain_copy(self, memo, units._whole)
        plain_call = plain._call_impl

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            known = _UNITS.get(self)
            return plain_call(self, *args, **kwargs) if known is None else known.call(plain_call, self, args, kwargs)

        kind._call_impl = call


def plain_copy(module: nn.Module, memo: dict[int, Any], whole: Callable[[DTensor], torch.Tensor]) -> nn.Module:
    for p in parameters_in(module):
        if isinstance(p, DTensor) and id(p) not in memo:
            memo[id(p)] = nn.Parameter(whole(cast(DTensor, p.detach())), p.requires_grad)
    plain: Any = type(module).__mro__[2]
    made: nn.Module = plain.__new__(plain)
    memo[id(module)] = made
    own = {key: value for key, value in vars(module).items() if not is_fsdps_attribute(key)}
    kept = {key: _without_ours(value) if key in HOOKS else value for key, value in own.items()}
    made.__dict__.update(copy.deepcopy(kept, memo))
    for inner in made.modules():
        for name in HOOKS:
            if name in inner.__dict__:
                inner.__dict__[name] = _without_ours(inner.__dict__[name])
        for name in [name for name in inner.__dict__ if is_fsdps_attribute(name)]:
            del inner.__dict__[name]
    return made


def _without_ours(hooks: Any) -> Any:
    kept = {key: hook for key, hook in hooks.items() if not (is_fsdps_hook(hook) or _is_ours(hook))}
    return type(hooks)(kept)


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("paceline.strategies.shards")
