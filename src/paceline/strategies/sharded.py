"""Sharded: each worker keeps a part of the parameters, of their gradients and of the optimizer's state (torch's FSDP2).

    strategy = paceline.Sharded()
    model, optimizer, loader = strategy.distribute(model, optimizer, loader)

Rows are split as under `Mirrored`, and numbers are the same. The model is sharded at its first call, by units that are
found: one for each repeated block, and one for the rest. Outside of the model's calls its parameters are DTensors; what
a script may do with them is in `shards.rules`. A parameter that FSDP2 cannot hold stays whole and is averaged.

With `replicas` the workers are divided into groups, of which each keeps a copy of the model: parameters are gathered
inside a group, and gradients are averaged over all workers. `mesh(data=2,shard=2)` is the same.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.agreement.updates import compare_options
from paceline.comm.axes import Axes
from paceline.comm.coalesced import broadcast_all
from paceline.comm.torch_backend import torch_mesh
from paceline.errors import ScriptError, UsageError
from paceline.script.patches import patch
from paceline.script.seams import hidden_group
from paceline.script.seams.stage import Stage
from paceline.strategies.mirrored import AtEnd, Mirrored
from paceline.strategies.whole import save_whole
from paceline.torch_private import is_compiled, is_dtensor, is_gathered_for_call, parameters_in
from paceline.units import size

if TYPE_CHECKING:
    from paceline.strategies.shards.rules import Beside, Rules
    from paceline.strategies.shards.units import Units


class Sharded(Mirrored):
    """FSDP2 over all workers, or over each group of them: each holds a part of weights, gradients and state.

    Take it if the model itself does not fit on one device. Costs half as many bytes again as Mirrored: weights are
    gathered in forward and in backward. Over Gloo twice the bytes, and nothing overlaps. When a peer dies, the message
    that misses it raises.
    """

    name = "sharded"
    whole_models = False

    def __init__(self, *, offload: bool = False, replicas: int = 1) -> None:
        """`offload`: parameters, gradients and the optimizer's state are kept in host memory. `replicas`: copies of the
        model; the workers are divided among them."""
        super().__init__()
        self.offload, self.replicas = offload, replicas
        self._units: list[Units] = []
        self._rules: Rules | None = None
        self._mesh: Any = None
        self._followed: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers whose loaded state is cut
        self._old: list[tuple[weakref.ref[Any], Any]] = []  # objects that were parameters, and what they are now
        self._running = 0  # calls under way, of a model and of parts of it
        self._broken = ""  # the line of a backward that raised, while its gradients may be there

    def axes(self, workers: int) -> Axes:
        if self.replicas < 1 or workers % self.replicas:
            raise UsageError(
                f"replicas={self.replicas} does not divide the {workers} worker(s) of the run.",
                advice=f"Type -n with a multiple of {max(self.replicas, 1)}, or leave replicas out.",
            )
        return Axes(data=self.replicas, shard=workers // self.replicas)

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        # The workers that hold the parts of one copy, and those that hold the same part of each copy.
        self._parts = self._copies = stage.rows
        if stage.aside:
            return
        if self.replicas > 1:
            self._parts, self._copies = (
                stage.group.along(f"sharded/{axis}", stage.axes.members(stage.group.rank, axis))
                for axis in ("shard", "data")
            )
            for group in (self._parts, self._copies):
                group.ending, group.together = stage.ending, stage.together
        if self._is_needed():
            self._accumulation.never = True  # FSDP2 reads `.grad` in backward, which would send what was kept back
        else:
            stage.subscribe(Alone(self))
        self._undo = [
            hidden_group.hide(),
            patch(torch.autograd, "grad", self._asking(torch.autograd.grad)),
            patch(torch.autograd, "backward", self._going_back(torch.autograd.backward)),
        ]
        save_whole(stage)

    # -- placing ---------------------------------------------------------------------------------------------------

    def on_model(self, module: nn.Module) -> None:
        """Broadcasts rank 0's weights and buffers. Gradients are met after the model is sharded."""
        if self.stage.aside:
            return
        tensors = (*parameters_in(module), *module.buffers())
        unknown = [t for t in tensors if t not in self._known and not t.is_meta]
        plain = [t for t in unknown if not is_gathered_for_call(t)]
        broadcast_all(self.stage.group, plain, "the model's weights")
        if not self._ends:
            self._ends = True
            self.stage.subscribe(AtEnd(self._compare_last))

    def place(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        if self.stage.aside:
            return
        why = self._reason_against(module)
        if why is None:
            with torch.inference_mode(False):
                self._shard(module, optimizers)
        elif why:
            self.stage.pulse.notice(f"Sharded: {type(module).__name__} stays whole on every worker: {why}.")
        if self._is_needed():
            self._meet_all(module)

    def _reason_against(self, module: nn.Module) -> str | None:
        """Why the module cannot be sharded; None if it can be; empty if there is nothing to shard."""
        if any(map(is_compiled, module.modules())):
            return "it is compiled"
        if any(isinstance(inner, torch.jit.ScriptModule) for inner in module.modules()):
            return "it is a ScriptModule"
        parameters = list(parameters_in(module))
        if any(is_gathered_for_call(p) and not is_dtensor(p) for p in parameters):
            return ""  # a part of a model that is being called
        if any(map(is_dtensor, parameters)):
            return "" if all(map(is_dtensor, parameters)) else "a part of it was called, and sharded, before"
        held = sum(p.numel() for p in parameters if p.dim())
        return None if held else ""

    def _shard(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        from paceline.spread.dtensors import connect  # DTensor takes long to import
        from paceline.strategies.shards import old_parameters
        from paceline.strategies.shards.rules import Rules
        from paceline.strategies.shards.units import Units

        device = next(parameters_in(module)).device.type
        if self._mesh is None or self._mesh.device_type != device:
            root = self._root_mesh(device)
            self._mesh = root["shard"] if root.ndim > 1 else root
            connect(self._mesh, self._parts)
        if self._rules is None:
            self._rules = Rules(self.stage.rows, lambda: self.stage.depth > 0, self._rebind, self._beside())
            self._undo.append(self._rules.install())
        before = dict(module.named_parameters())
        about = self._split(module)
        busy = old_parameters.in_graphs()
        total = sum(p.numel() * p.element_size() for p in before.values())
        copies = self._copies if self.replicas > 1 else None
        units = Units(module, self._mesh, self.stage.rows, copies, self._rules.whole, offload=self.offload)
        self._units.append(units)
        now = dict(module.named_parameters())
        exchanged = [(old, now[name]) for name, old in before.items() if now[name] is not old]
        for optimizer in optimizers:
            self._exchange(optimizer, {id(old): new for old, new in exchanged})
        for old, new in exchanged:
            old_parameters.lead(old, new, free=id(old) not in busy)  # type: ignore[arg-type]
            self._old.append((weakref.ref(old), new))
        for held in units.parameters:
            held.sharded_param._paceline_held = held
        for name, tell in about.items():
            tell(now[name]._paceline_held._unsharded_param)  # type: ignore[attr-defined]
        own = sum(_bytes_of(p) for p in now.values())
        self.stage.pulse.notice(
            f"Sharded: a worker keeps {size(own)} of {size(total)} of the parameters of {type(module).__name__}, in "
            f"{len(units.units)} unit(s), and the same part of gradients and of the optimizer's state"
            + (", in host memory." if self.offload else ".")
        )

    def _root_mesh(self, device: str) -> Any:
        """The mesh of all axes on this kind of device."""
        names = ("data", "shard") if self.replicas > 1 else ("shard",)
        return torch_mesh.mesh(self.stage.group, self.stage.axes, device, *names)

    def _split(self, module: nn.Module) -> dict[str, Callable[[Any], None]]:
        """Splits parameters over another axis than shard, before FSDP2 gets them. Returns, for each of them by name,
        what tells the layers about the parameter that FSDP2 gathers for a call."""
        return {}

    def _beside(self) -> Beside | None:
        """What knows DTensors that do not lie on the axis shard; None if there are none."""
        return None

    def _exchange(self, optimizer: torch.optim.Optimizer, new: dict[int, nn.Parameter]) -> None:
        """Gives an optimizer the sharded parameters, in the same order, and cuts its state."""
        for group in optimizer.param_groups:
            # In place: L-BFGS keeps the list.
            group["params"][:] = [new.get(id(p), p) for p in group["params"]]
        for old in [p for p in optimizer.state if id(p) in new]:
            optimizer.state[new[id(old)]] = optimizer.state.pop(old)
        self._cut_state(optimizer)
        if optimizer not in self._followed:
            self._followed.add(optimizer)
            optimizer.register_load_state_dict_post_hook(self._cut_state)

    def _cut_state(self, optimizer: torch.optim.Optimizer) -> None:
        from paceline.spread.dtensors import split_like

        for parameter, state in optimizer.state.items():
            if is_dtensor(parameter):
                for name, value in state.items():
                    whole = isinstance(value, torch.Tensor) and not is_dtensor(value)
                    if whole and value.shape == parameter.shape:
                        state[name] = split_like(value, parameter)

    def on_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self._units and optimizer not in self._followed:  # made after the first call
            self._exchange(optimizer, {})

    def _rebind(self, parameter: Any) -> None:
        held = getattr(parameter, "_paceline_held", None)
        if held is not None:
            held.reset_sharded_param()

    # -- calls, gradients ------------------------------------------------------------------------------------------

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        return super().call(self._resetting(plain), module, args, kwargs)

    def _resetting(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._running += 1
            try:
                return plain(module, *args, **kwargs)
            except BaseException:
                for units in self._units:
                    if self._running == 1:
                        units.reset()
                    else:  # a dry run of a part, during the call of a model
                        units.reset_within(module)
                raise
            finally:
                self._running -= 1

        return call

    def around_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> None:
            if kwargs.get("create_graph"):
                raise self._refusal("backward(create_graph=True)", "gradients of gradients")
            if kwargs.get("inputs") is not None:
                given = kwargs["inputs"]
                kwargs["inputs"] = _with_gathered([given] if isinstance(given, torch.Tensor) else list(given))
            plain(*args, **kwargs)
            self._fetch_late()
            for units in self._units:
                units.reduce_late()

        return backward

    def _fetch_late(self) -> None:
        """A term that the script computed before the model's first call has its gradients on the old parameters."""
        if not self._old:
            return
        from paceline.spread.dtensors import split_like
        from paceline.strategies.shards.old_parameters import late_gradient, release

        for known, now in self._old:
            if (old := known()) is not None and (grad := late_gradient(old)) is not None:
                part = split_like(grad, now)
                now.grad = part if now.grad is None else now.grad + part
                release(old)

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        self._look_at_parameters("adds to")
        super().before_backward(losses)

    def backward_raised(self) -> None:
        super().backward_raised()
        for units in self._units:
            units.reset()
        self._broken = "raised"

    def before_step(self, optimizer: Any) -> None:
        self._look_at_parameters("steps with")
        operands = None if self._rules is None else self._rules.operands
        told = compare_options(optimizer, self.group, () if operands is None else operands.shown())
        if operands is not None:
            operands.judge(told)
        super().before_step(optimizer)

    def _compare_last(self) -> None:
        super()._compare_last()
        if self._rules is not None:
            self._rules.operands.compare(self.group)

    def before_forward(self, module: nn.Module) -> None:
        self.look()
        super().before_forward(module)

    def look(self) -> None:
        """Before a call: what the script has written into views is written back; a replaced parameter is refused."""
        if self._rules is not None:
            self._rules.write_back(arrays=True)
        for units in self._units:
            if not self._running and (name := units.look()):
                raise ScriptError(
                    f"The script has replaced the parameter {name} after the model's first call, which --strategy "
                    "sharded cannot follow.",
                    advice="Use --strategy mirrored, or change the values in place.",
                )

    def _look_at_parameters(self, what: str) -> None:
        """Refuses what FSDP2 cannot do with parameters, before it gives other numbers."""
        if self._rules is not None:
            self._rules.write_back(arrays=True)
        found = False
        for units in self._units:
            for held in units.parameters:
                parameter = held.sharded_param
                if parameter._backward_hooks:
                    raise self._refusal(
                        "a hook on a parameter", "hooks that are set on parameters after the first call"
                    )
                found = found or (bool(self._broken) and parameter.grad is not None)
        if found:
            raise ScriptError(
                f"A backward raised, the script caught the exception, and now it {what} gradients computed before the "
                "exception: they differ from worker to worker.",
                advice="Drop these gradients where the exception is caught: optimizer.zero_grad()",
            )
        self._broken = ""

    def _meet(self, parameter: torch.Tensor, name: str = "") -> None:
        if is_dtensor(getattr(parameter, "_now", parameter)):
            self._known[parameter] = None
        elif not is_gathered_for_call(parameter):
            super()._meet(parameter, name)

    def _asking(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """torch.autograd.grad, which also finds what FSDP2 has gathered for a model's call."""

        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._units or self._rules is None or self.stage.depth:
                return plain(outputs, inputs, *args, **kwargs)
            from paceline.strategies.shards.asked_gradients import ask, held_of, options_of

            asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            options = options_of(args, kwargs)
            if any(held_of(tensor) is not None for tensor in asked):
                return ask(plain, outputs, asked, options, self.stage.rows, self._rules.whole)
            if options.get("create_graph") and not self.stage.backward_depth:
                raise self._refusal("torch.autograd.grad(create_graph=True)", "gradients of gradients")
            return plain(outputs, asked, *args, **kwargs)

        return self.stage.guarded(grad)

    def _going_back(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """torch.autograd.backward, which FSDP2 cannot follow where it is a part of a model's own call."""

        def backward(*args: Any, **kwargs: Any) -> None:
            if self._units and (self.stage.depth or self._running):
                raise self.stage.no_whole_weights("calls backward inside a model's own call")
            plain(*args, **kwargs)

        return self.stage.guarded(backward)

    def _refusal(self, what: str, kind: str) -> ScriptError:
        from paceline.strategies.shards.units import refusal

        return refusal(what, f"{kind}: parameters are freed after a model's call")

    # -- saving ----------------------------------------------------------------------------------------------------

    def full(self, part: Any) -> Any:
        if isinstance(part, nn.Module):
            return copy.deepcopy(part) if any(map(is_dtensor, parameters_in(part))) else part
        tensor = getattr(part, "_now", part)
        if not is_dtensor(tensor) or self._rules is None:
            return tensor
        self._rules.write_back(arrays=True)
        with torch.no_grad():
            whole = self._rules.whole(tensor)
        return nn.Parameter(whole, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else whole


class Alone:
    """The seams of a run with one worker, which has no gradients to average."""

    def __init__(self, strategy: Sharded) -> None:
        self.around_backward, self.on_optimizer = strategy.around_backward, strategy.on_optimizer
        self._strategy = strategy

    def before_forward(self, module: nn.Module) -> None:
        self._strategy.look()


def _with_gathered(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, and for each sharded parameter also the whole one, which a graph of the model ends in."""
    now = [getattr(tensor, "_now", tensor) for tensor in inputs]
    held = [getattr(tensor, "_paceline_held", None) for tensor in now if is_dtensor(tensor)]
    return [*now, *(one._unsharded_param for one in held if one is not None)]


def _bytes_of(parameter: torch.Tensor) -> int:
    local = getattr(parameter, "_local_tensor", parameter)
    return local.numel() * local.element_size()
