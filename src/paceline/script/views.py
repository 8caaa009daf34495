"""The part of a batch that a worker sees: the whole batch (batch view), or its own slice (slice view).

In the batch view the work is split inside the model's calls, and every number that the script computes covers the whole
batch. In the slice view the loader hands out slices, as under DDP: nothing is gathered, losses are weighted by slice
size and made global, and other numbers cover the slice. Evaluation uses the batch view in both cases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.comm.call_site import is_of_library
from paceline.errors import NotSplitError, ScriptError
from paceline.script import tree
from paceline.script.draws import compiled
from paceline.script.draws.rows import Draws
from paceline.script.proof.plan import SlicePlan
from paceline.script.proof.proof import Proof
from paceline.script.proof.reasons import SLICE_VIEW
from paceline.script.redo import Redo
from paceline.script.rng import OwnStream
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split, Usage
from paceline.script.rows.inputs import Inputs
from paceline.script.rows.tensor import make_plain_if_free
from paceline.script.slicing.handed_out import HandedOut
from paceline.script.slicing.lazy_parameters import has_lazy, initialise_lazy
from paceline.script.slicing.loss_denominators import Averages
from paceline.script.slicing.sliced import SlicedCalls
from paceline.script.slicing.unfinished import equal_buffers, follow, sizes_of
from paceline.script.state import StageState
from paceline.torch_private import parameters_in, uncompiled

OWN_DRAWS = "Each worker draws its own random numbers inside the model, so numbers differ from one process."


class Views:
    """Applies the view."""

    def __init__(self, stage: StageState) -> None:
        self.stage, self.group = stage, stage.rows
        self.name = "batch"
        self.rows = 0  # of the outermost call under way
        self._held = HandedOut(self.group)
        self._stream = OwnStream(stage.run.seed, self.group.rank)
        self.averages = Averages()
        self.is_sliced = False  # mod view=slice: the script sees its worker's slice
        self.norms_see_batch = True  # batch norm: of the whole batch, or (mod bn=local) of the worker's slice
        self.drew = False  # a sliced call drew random numbers
        self.own_draws = False  # random numbers in a sliced call: of one process, or (mod random=own) of the worker
        self.draws = Draws()
        self.draws.apart, self.draws.may_be_split = self._stream.inside, lambda: self.group.world > 1
        proof = Proof(self.group, stage.run.batch_dim, self.draws)
        self._calls = SlicedCalls(
            self.group,
            stage.together,
            proof,
            self._inside,
            self.averages,
            self.draws,
            lambda: self.norms_see_batch,
            stage.run.gather_below,
            stage.as_script,
            self.name_in_script,
            self.advice_for,
        )
        if self.group.members is not None:
            self._calls.redo = Redo(self.group, stage.inside)
        self._inputs = Inputs(self.group, stage.run.gather_below)
        self._called: nn.Module | None = None  # the module that was called with the worker's slice
        self._warned: set[str] = set()
        self.own_call: Callable[..., Any] = nn.Module.__call__  # of the module that is being called, without any mod
        # Called before each call that is computed in slices: all workers hold the same arguments.
        self.on_slices: Callable[[nn.Module, Any], None] = lambda module, given: None

    @property
    def draws_own(self) -> bool:
        """Whether a call draws numbers of this worker, not those that its rows have in one process."""
        return self.own_draws or self.batch_is_cut

    @property
    def batch_is_cut(self) -> bool:
        """Whether the script's current batch is this worker's slice."""
        return self._held.split is not None

    @property
    def redo(self) -> Redo | None:
        """How calls and backwards are made again; None unless the run is elastic."""
        return self._calls.redo

    @property
    def refusal(self) -> NotSplitError | None:
        """Why a module could not be split."""
        return self._calls.refusal

    @property
    def unbatched(self) -> str | None:
        """Why a call without a batch was not split."""
        return None if self._calls.unbatched is None else self._calls.unbatched.reason

    @property
    def share(self) -> float:
        """The fraction of the batch that the script holds."""
        return 1.0 if self._held.split is None else self._held.split.share

    @property
    def gathers(self) -> bool:
        """Whether every output is gathered at once."""
        return self._calls.gathers

    @gathers.setter
    def gathers(self, value: bool) -> None:
        self._calls.gathers = value

    @property
    def split(self) -> Split | None:
        """How the rows that a module sees right now were split; None if it sees the whole batch."""
        return self._held.split or self._calls.split

    @property
    def split_for_norms(self) -> Split | None:
        """How the rows that batch norm sees were split; None if it uses the rows that it sees."""
        return self.split if self.norms_see_batch else None

    @property
    def split_of_call(self) -> Split | None:
        """How the rows of the current sliced call were split."""
        return self._calls.split

    @split_of_call.setter
    def split_of_call(self, split: Split | None) -> None:
        self._calls.split = split

    def switches(self, module: nn.Module) -> Hashable:
        """The values of the model's attributes by which a script may switch its behaviour."""
        return self._calls.guards.switches(module)

    def batch_size(self, batch: Any) -> int:
        """The number of samples, over all workers, of a batch that a loader handed out."""
        return self._held.split.batch if self._held.split else self._size(batch)

    def call_lazy(
        self,
        plain: Callable[..., Any],
        own: Callable[..., Any],
        module: nn.Module,
        args: Any,
        kwargs: Any,
        whole_models: bool,
    ) -> tuple[Any] | None:
        """The output of a root module's first call, if it must come first: the call makes the parameters that mods
        and strategies then see. None if the call is still to come. `whole_models`: of the strategy."""
        if self.stage.group.world == 1 or not has_lazy(module):
            return None
        if self.batch_is_cut or (torch.is_grad_enabled() and not whole_models):
            initialise_lazy(plain, module, args, kwargs)
            self.stage.group.pulse.notice(
                f"The lazy layers of {type(module).__name__} get their weights before the first call, since this run "
                "divides models or batches first: behind dropout these weights are others than in plain Python. For "
                "the same weights: --strategy mirrored, without --mod view=slice"
            )
            return None
        return (self._calls.call(plain, own, module, args, kwargs),)

    def expect(self, args: Any, kwargs: Any) -> None:
        """Counts the rows of the call that is about to be made."""
        if not self.stage.has_loader:  # with a loader, its batches are counted
            self.rows = self._size((args, kwargs))

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The outermost call of a module, computed in this view."""
        if self.group.world == 1 or self._is_whole(module):
            compiled.tell_devices(0, 0)
            make_plain_if_free((args, kwargs))
            return plain(module, *args, **kwargs)
        if self.batch_is_cut:
            if not (torch.is_grad_enabled() and module.training):
                self.warn("A call in eval mode inside the training loop saw only its worker's slice (slice view).")
            return self._in_slice(plain, module, args, kwargs)
        if self.is_sliced and not self.stage.has_loader and torch.is_grad_enabled() and module.training:
            raise ScriptError(
                "--mod view=slice needs a DataLoader, which hands out the slices; this script trains without one.",
                advice="Leave --mod view=slice out: the batch view needs no DataLoader.",
            )
        self.on_slices(module, (args, kwargs))
        return self._calls.call(plain, self.own_call, module, args, kwargs)

    @contextmanager
    def _inside(self, plan: SlicePlan, split: Split, strict: bool) -> Iterator[None]:
        """Random draws inside a sliced call."""
        if self.own_draws:
            with self._stream.inside():
                yield
        else:
            if plan.compiled:
                compiled.tell_devices(split.start if split.mine else 0, split.batch)
            with self.draws.in_call(split, plan.draws, strict=strict, by_shape=plan.compiled):
                yield
        self.drew = self.drew or bool(plan.draws)
        if plan.draws and self.own_draws:
            self.warn(OWN_DRAWS)
        for what in self.draws.told:
            self.warn(
                f"{what[0].upper()}{what[1:]}: each worker draws its own random numbers, not those of one process."
            )

    @contextmanager
    def unsplit(self) -> Iterator[None]:
        """For a trial on one worker inside a split call: its rows are a batch of their own, and no worker is asked."""
        before = self.split_of_call, self.norms_see_batch, self.averages.watching
        self.split_of_call, self.norms_see_batch, self.averages.watching = None, False, False
        try:
            yield
        finally:
            self.split_of_call, self.norms_see_batch, self.averages.watching = before

    def _in_slice(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call with the rows that the script holds. Nothing is gathered, and a worker draws its own random
        numbers."""
        begun = self._stream.position

        def compute(module: nn.Module, args: Any, kwargs: Any, put_back: Callable[[], None] | None = None) -> Any:
            def again() -> None:
                assert put_back is not None
                put_back()
                self._stream.position = begun

            self._called, now, self._stream.position = module, self._stream.position, begun
            work, redone = (self._call_in_slice, plain, module, args, kwargs), None if put_back is None else again
            try:
                return self.stage.together.do(*work, tell=self._tell, undo=self._undo, again=redone)
            finally:
                if put_back is None and self.redo is not None:  # made once more, in a backward
                    self._stream.position = now

        return compute(module, args, kwargs) if self.redo is None else self.redo.call(compute, module, args, kwargs)

    def _call_in_slice(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        with self._stream.inside():
            output = plain(module, *args, **kwargs)
        self.group.agree()  # nothing is gathered here, so no other collective would report a failure
        return output

    def _tell(self) -> list[Any]:
        return sizes_of(self._equal_buffers())

    def _undo(self, first: int, told: list[Any]) -> None:
        follow(self._equal_buffers(), first, told, self.group)

    def _equal_buffers(self) -> list[torch.Tensor]:
        assert self._called is not None
        return equal_buffers(self._called, norms=self.norms_see_batch, floats=False)

    def hand_out(self, cut: Split | None) -> None:
        """The loader hands out a slice of a batch, or (None) the whole batch."""
        self._held.hold(cut)

    def count_batch(self) -> None:
        """The gradients of the current batch have been summed, on all workers."""
        self._held.count()

    def shown(self, batch: Any, usages: dict[Hashable, Usage]) -> Any:
        """What the script gets for a loader's batch: large tensors are sharded, if that pays."""
        if self.group.world == 1 or self.is_sliced or self.gathers or self.redo or self.stage.run.batch_dim:
            return batch
        return self._inputs.sharded(batch, usages)

    def wants_slices(self) -> bool:
        """Whether the next batch of a loader must be cut: in the slice view, while training."""
        if self.name != "slice" and self.is_sliced:
            self._go_slice()
        return self.name == "slice" and self.is_training()

    def is_training(self) -> bool:
        """Whether the script is training: gradients are on, and a model is in training mode."""
        if not torch.is_grad_enabled():
            return False
        models = list(self.stage.trained) or _models_in_frames()
        return not models or any(module.training for module in models)

    # -- losses in the slice view ----------------------------------------------------------------------------------

    def weigh(self, losses: list[torch.Tensor], grads: Any) -> Any:
        """The gradients to pass to backward so that the average over workers is the gradient of the global loss."""
        if not self.batch_is_cut:
            return grads
        given = [grads] if isinstance(grads, torch.Tensor) else list(grads or [None] * len(losses))
        factor = self.share * self.group.world
        return [(torch.ones_like(t) if g is None else g) * factor for t, g in zip(losses, given, strict=True)]

    def whole_value(self, tensor: torch.Tensor) -> torch.Tensor:
        """The global value of a 0-dim tensor that still has its graph; any other tensor unchanged."""
        if not self.batch_is_cut or self.stage.depth or self.stage.backward_depth:
            return tensor
        if tensor.dim() or tensor.grad_fn is None or getattr(tensor, "_paceline_whole", False):
            return tensor
        while True:
            generation = self.group.generation
            whole = crossings.blend(tensor.detach(), self.share, self.group)
            if self.group.generation == generation:  # else a worker was lost, and this one's share is another
                return whole

    def refuse_gradients(self) -> None:
        if self.batch_is_cut:
            raise ScriptError(
                "torch.autograd.grad, which the script calls, has no weighting by slice size in the slice view.",
                advice="Leave --mod view=slice out.",
            )

    def _go_slice(self) -> None:
        self.name = self.stage.pulse.view = "slice"
        self.stage.pulse.notice(
            "Slice view: each worker sees its slice of a training batch. Gradients, and losses that are "
            "means over samples, cover the whole batch; other numbers that the script computes from a training batch "
            "cover worker 0's slice."
        )

    def _is_whole(self, module: nn.Module) -> bool:
        names = self.stage.run.whole
        return bool(names) and (type(uncompiled(module)).__name__ in names or self.path_of(module) in names)

    def path_of(self, module: nn.Module) -> str | None:
        """The name of the module in the script, or its path below another root module."""
        import __main__

        for name, value in vars(__main__).items():
            if value is module:
                return name
        # The roots' order differs between workers, and a root that is part of another has two names.
        names = {name for root in self.stage.roots for name, child in root.named_modules() if child is module and name}
        return min(names, key=lambda name: (len(name), name), default=None)

    def name_in_script(self, module: nn.Module) -> str:
        """How a person finds the module: `net.encoder.0`; empty if no variable of the script leads to it."""
        import __main__

        held = dict[int, str]()
        for space, prefix in ((vars(__main__), ""), *_namespaces_of_script()):
            for name, value in list(space.items()):
                if isinstance(value, nn.Module):
                    held.setdefault(id(value), prefix + name)
        if id(module) in held:
            return held[id(module)]
        names = [
            f"{held.get(id(root)) or type(root).__name__}.{name}"
            for root in self.stage.roots
            for name, child in root.named_modules()
            if child is module and name
        ]
        return min(names, key=lambda name: (len(name), name), default="")

    def advice_for(self, why: NotSplitError) -> str:
        """What the user may type for a module that is not split; empty if it would be refused."""
        if why.advice == SLICE_VIEW and (self.is_sliced or not self.stage.has_loader):
            return ""
        return f"{why.advice}." if why.advice else ""

    def _norms(self) -> bool:
        return self.norms_see_batch

    def _size(self, value: Any) -> int:
        dim, leaf = self.stage.run.batch_dim, tree.first_tensor(value)
        if leaf is None or (type(leaf) is torch.Tensor and leaf.is_nested):
            return 0
        return int(leaf.shape[dim if leaf.dim() > dim else 0])

    def warn(self, text: str) -> None:
        """A notice, once."""
        if text not in self._warned:
            self._warned.add(text)
            self.stage.pulse.notice(text)


def _namespaces_of_script() -> Iterator[tuple[dict[str, Any], str]]:
    """The local variables of the script's running functions, outermost first, and the attributes of the objects that
    hold them (a trainer); with what a person writes before a name. Not what a module's own code calls `self`."""
    frames: list[Any] = [sys._getframe(1)]
    while frames[-1].f_back is not None:
        frames.append(frames[-1].f_back)
    for frame in reversed(frames):
        space = frame.f_locals
        owner = space.get("self")
        if is_of_library(frame.f_code.co_filename) or isinstance(owner, nn.Module) or space is frame.f_globals:
            continue
        yield space, ""
        yield getattr(owner, "__dict__", {}), "self."


def _models_in_frames() -> list[nn.Module]:
    """The models held in local variables of the script's running functions; used before any model was called."""
    found: list[nn.Module] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        values = list(frame.f_locals.values())
        found += [v for v in values if isinstance(v, nn.Module) and next(parameters_in(v), None) is not None]
        frame = frame.f_back
    return found
