"""Mirrored: every worker holds the whole model; gradients are averaged after every backward.

Used by `paceline run` for an unmodified script, or explicitly in a script:

    strategy = paceline.Mirrored()
    model, optimizer, loader = strategy.distribute(model, optimizer, loader)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from paceline.agreement.compare import Agreement
from paceline.agreement.updates import LossCheck, is_number
from paceline.comm.bucket_tuning import BucketTuner
from paceline.comm.buckets import Buckets, BucketTail, Watcher
from paceline.comm.coalesced import broadcast_all
from paceline.comm.group import Group
from paceline.comm.sparse import sparse
from paceline.script import chance
from paceline.script.rows import crossings
from paceline.script.seams.stage import Stage, call_site
from paceline.settings import Compression
from paceline.strategies.accumulation import Accumulation
from paceline.strategies.base import BaseStrategy
from paceline.strategies.half_done import HalfDone
from paceline.torch_private import BatchNorm, own_grad, parameters_in


class Mirrored(BaseStrategy):
    """Synchronous data parallelism: every worker holds the whole model, and gradients are averaged by all-reduce.

    The first choice wherever the model and the optimizer's state fit on one device. Costs one all-reduce of the
    gradients per step, most of it under the backward. When a peer dies, the collective that misses it raises.
    """

    name = "mirrored"
    divided: tuple[type, ...] = ()  # classes of tensors of which each worker holds a part: they are not broadcast

    def __init__(self, *, compression: Compression = "none") -> None:
        """`compression` of gradients between hosts ("bf16", "fp16", "powersgd") changes numbers; a notice says so."""
        self.compression = compression
        self.tuner: BucketTuner | None = None
        self._first: weakref.ref[Any] | None = None  # the optimizer whose step ends a step
        self._ends = False  # a model was called: the last comparison is subscribed

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        self.group = stage.rows
        if self._is_needed():
            self.group.compress(stage.run.compression if self.compression == "none" else self.compression)
            self._buckets = Buckets(self.group, self._average_unbucketed)
            self.tuner = BucketTuner(self.group, self._buckets) if stage.run.autotune else None
            self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameter → its slot, or None while frozen
            self._handles: WeakIdKeyDictionary = WeakIdKeyDictionary()
            self._accumulation = Accumulation(self._sum_kept_back)
            self._accumulation.never = self.group.members is not None
            self._sites: set[int] = set()
            self._half_done = HalfDone(self._buckets)
            # Trained since buffers were last averaged, in call order: a set's order differs between workers.
            self._trained_since_averaging: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()
            self._agreement, self._losses = Agreement(stage, self._name_of), LossCheck()
            stage.views.on_slices = self._agreement.on_slices
            chance.share(stage)
            stage.subscribe(self)

    def watch_gradients(self, watcher: Watcher) -> None:
        """From now on the watcher sees gradients before and after they are summed. Only with several workers."""
        self._buckets.watcher = watcher

    # -- seams -----------------------------------------------------------------------------------------------------

    def on_model(self, module: nn.Module) -> None:
        """Broadcasts rank 0's weights and buffers at the first call."""
        if self.stage.aside:
            return
        tensors = (*parameters_in(module), *module.buffers())
        unknown = [tensor for tensor in tensors if tensor not in self._known and not tensor.is_meta]
        whole = [tensor for tensor in unknown if not isinstance(tensor, self.divided)]  # not a copy of a divided model
        broadcast_all(self.stage.group, whole, "the model's weights")
        self._meet_all(module)
        if not self._ends:
            self._ends = True
            self.stage.subscribe(AtEnd(self._compare_last))

    def before_forward(self, module: nn.Module) -> None:
        self._agreement.before_forward(module)
        if module.training:
            self._trained_since_averaging[module] = None
            if any(parameter not in self._known for parameter in parameters_in(module)):  # added since the first call
                self._meet_all(module)
        elif module in self._trained_since_averaging:
            self._average_buffers()

    def after_forward(self, module: nn.Module) -> None:
        self._agreement.after_forward(module)

    def on_save(self, target: Any) -> None:
        if not self.stage.aside:
            self._average_buffers()
            self._agreement.on_save()

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        self._half_done.look()
        self._site = site = call_site()
        if site not in self._sites:
            self._sites.add(site)
            for leaf, inside in leaves_of(losses):
                if not inside or isinstance(leaf, nn.Parameter) or self._held_outside(leaf):
                    self._meet(leaf)
        for parameter, slot in list(self._known.items()):
            if slot is None and parameter.requires_grad:  # frozen until now
                self._meet(parameter)
            self._put_own_hooks_first(parameter)
        if self._accumulation.may_keep_back(site) or self.group.members is not None:
            self._buckets.keep_back()
        else:
            self._buckets.begin(site)

    def backward_raised(self) -> None:
        self._accumulation.kept_back = False
        self._half_done.add(self._buckets.break_off())

    def backward_again(self) -> None:
        self._buckets.forget()
        self._buckets.keep_back()

    def before_step(self, optimizer: Any) -> None:
        self._half_done.refuse_step(optimizer)
        self._accumulation.look()

    def after_step(self, optimizer: Any) -> None:
        self._accumulation.stepped()
        if self._first is None:
            self._first = weakref.ref(optimizer)
        ends_step = self._first() is optimizer
        self._agreement.after_step(ends_step=ends_step)
        if self.tuner is not None and ends_step and not self.stage.aside:
            self.tuner.step()

    def after_backward(self, losses: list[torch.Tensor]) -> None:
        loss, views = losses[0], self.stage.views
        self._half_done.refuse_more()
        self._agreement.after_backward()
        if self._accumulation.kept_back:
            if views.batch_is_cut:
                self._make_whole(loss, None)
            return
        if self.group.members is not None:  # sent only now: until then, a worker may be lost without harm
            self._buckets.begin(self._site)
        on_host = is_number(loss) and loss.device.type == "cpu"
        shown = float(loss.detach()) if on_host else 0.0 if views.batch_is_cut else self._losses.late(loss)
        tails = self._buckets.finish(shown, views.share, self._agreement.riders())
        self._agreement.compare([tail.riders for tail in tails])
        if views.batch_is_cut:
            self._make_whole(loss, tails if on_host else None)
            views.count_batch()
        else:
            self._losses.compare([tail.loss for tail in tails], late=not on_host)

    def on_end(self) -> None:
        """Compares seeds also without a model. Rank 0, which serves the store, must not leave first."""
        if not self._ends and not self.stage.aside:
            self._agreement.exchange()

    def on_enough(self) -> None:
        """The run ends before the script does, after the same step on all workers: the last update is compared."""
        if self._is_needed():
            self._compare_last()

    def told(self) -> dict[str, Any] | None:
        return self.tuner.verdict.told() if self.tuner is not None and self.tuner.verdict is not None else None

    def _compare_last(self) -> None:
        self._agreement.on_end()
        self._losses.end(self.group)

    def _is_needed(self) -> bool:
        """False with one worker, and if the script distributes itself."""
        return self.group.world > 1 and not self.stage.aside

    # -- parameters ------------------------------------------------------------------------------------------------

    def _held_outside(self, leaf: torch.Tensor) -> bool:
        """Whether a bare tensor used in a sliced call belongs to the script (a weight), or was made inside the call."""
        import __main__

        owners = (vars(module) for root in self.stage.roots for module in root.modules())
        return any(value is leaf for owner in (vars(__main__), *owners) for value in owner.values())

    def _name_of(self, module: nn.Module) -> str:
        return self.stage.views.path_of(module) or type(module).__name__

    def _meet_all(self, module: nn.Module) -> None:
        prefix = self._name_of(module)
        for name, parameter in module.named_parameters():
            self._meet(parameter, f"{prefix}.{name}")

    def _meet(self, parameter: torch.Tensor, name: str = "") -> None:
        """From now on this parameter's gradient is averaged."""
        if is_lazy(parameter) or not parameter.is_leaf or self._known.get(parameter) is not None:
            return
        if not parameter.requires_grad:
            self._known[parameter] = None
            return
        self._known[parameter] = self._buckets.adopt(parameter, name)
        self._handles[parameter] = parameter.register_post_accumulate_grad_hook(self._ready).id

    def _ready(self, parameter: torch.Tensor) -> None:
        if self.stage.makes_samples():
            return  # a backward of a dataset, on samples that only this worker makes
        grad = own_grad(parameter)
        if grad is None:
            return  # reached without a gradient: the `None` that an autograd.Function's backward may return
        if len(parameter._post_accumulate_grad_hooks) > 1:
            # A hook of the script uses this gradient inside backward: it must be the global gradient by then.
            parameter.grad = crossings.average(grad, self.group)
        else:
            self._buckets.ready(self._known[parameter], parameter)

    def _put_own_hooks_first(self, parameter: torch.Tensor) -> None:
        """Hooks that the script set on a parameter must see the global gradient: calls the averaging hook first."""
        hooks: Any = parameter._backward_hooks
        own = all(getattr(hook, "is_linear", False) for hook in hooks.values()) if hooks else True  # a mod's
        if not own and next(iter(hooks.values())) != self._average_now:
            handle = parameter.register_hook(self._average_now)
            put_first(hooks, handle.id)
        after = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if after and len(after) > 1 and next(iter(after.values())) != self._ready:
            put_first(after, self._handles[parameter])

    def _average_now(self, grad: torch.Tensor) -> torch.Tensor:
        return grad if self.stage.makes_samples() else crossings.average(grad, self.group)

    def _average_unbucketed(self, parameter: torch.Tensor) -> None:
        """Averages a sparse gradient, or a gradient that has a graph itself."""
        grad = parameter.grad
        if grad is not None and grad.requires_grad:
            parameter.grad = crossings.average(grad, self.group)
            return
        parameter.grad = gather_sparse(grad, parameter, self.group)

    def _average_buffers(self) -> None:
        """Averages the running statistics of batch norms, which cover each worker's slices with `bn=local`, before they
        are used or saved. No other buffer: a mask of the least float would become −∞."""
        norms = [m for module in self._trained_since_averaging for m in module.modules() if isinstance(m, BatchNorm)]
        for norm in norms if not self.stage.views.norms_see_batch else ():
            for buffer in norm.buffers():
                if buffer.is_floating_point():
                    self.group.all_reduce(buffer, "the model's buffers")
                    buffer.div_(self.group.world)
        self._trained_since_averaging.clear()

    def _sum_kept_back(self) -> None:
        """Sums the gradients that were kept back, because they are about to be read."""
        self._buckets.begin(self._site)
        self._buckets.finish(0.0, 1.0)

    # -- the loss --------------------------------------------------------------------------------------------------

    def _make_whole(self, loss: torch.Tensor, tails: list[BucketTail] | None) -> None:
        """Replaces the loss by the global one in the slice view, so that the script prints that."""
        if tails is None:
            whole = crossings.blend(loss.detach(), self.stage.views.share, self.group)
            loss.data.copy_(whole)
        else:
            loss.data.fill_(sum(tail.loss * tail.share for tail in tails if tail.share))
        loss._paceline_whole = True  # type: ignore[attr-defined]


class AtEnd:
    """The last comparison, after all other listeners at the end: it may refuse the run."""

    def __init__(self, compare: Callable[[], None]) -> None:
        self.on_end = compare


def put_first(hooks: Any, handle: int) -> None:
    """Makes a hook the first to be called. Torch iterates the underlying dict, whose order `move_to_end` keeps."""
    ours = {handle: hooks[handle]}
    others = {key: hook for key, hook in hooks.items() if key != handle}
    hooks.clear()
    hooks.update(ours | others)


def leaves_of(losses: list[torch.Tensor]) -> list[tuple[torch.Tensor, bool]]:
    """The leaves that get a gradient in a backward from these losses, in a fixed order, each with whether it is reached
    inside sliced calls only."""
    found: dict[int, tuple[torch.Tensor, bool]] = {}
    seen: set[tuple[Any, bool]] = set()
    todo: list[tuple[Any, bool]] = [(loss.grad_fn, False) for loss in losses if loss.grad_fn is not None]
    while todo:
        node, inside = todo.pop()
        if (node, inside) in seen or (node, False) in seen:
            continue
        seen.add((node, inside))
        if hasattr(node, "variable"):
            leaf, before = node.variable, found.get(id(node.variable), (None, True))[1]
            found[id(leaf)] = (leaf, inside and before)
        inside = crossings.is_inside_behind(node, inside)
        todo += [(following, inside) for following, _ in node.next_functions if following is not None]
    return list(found.values())


def gather_sparse(grad: torch.Tensor | None, parameter: torch.Tensor, group: Group) -> torch.Tensor:
    """The average of sparse gradients: the rows of all workers, summed where indices coincide."""
    if grad is None:
        nowhere = torch.empty((1, 0), dtype=torch.long, device="cpu")
        grad = sparse(nowhere, parameter.new_empty((0, *parameter.shape[1:])), parameter.shape)
    grad = grad.coalesce()
    indices, values = grad.indices(), grad.values()
    sizes = group.gather_vectors(torch.tensor([values.shape[0]], device="cpu"), "sparse gradients").flatten().tolist()
    indices = group.gather_rows(indices, 1, sizes, "sparse gradients")
    values = group.gather_rows(values, 0, sizes, "sparse gradients") / group.world
    return sparse(indices, values, parameter.shape, parameter.device).coalesce()
