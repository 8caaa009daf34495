"""Finds the seams of an unmodified script: by torch's public hooks, and by one patch per seam where torch has no hook.

before_step, after_step                   torch's global optimizer step hooks
on_optimizer                              patch of Optimizer.__init__
on_model, before_forward, after_forward   patch of nn.Module.__call__ (a global forward hook would slow inner calls)
(model.forward(x))                        patches of the modules' forward: see `direct_forward`
before_backward, after_backward           patch of torch.autograd.backward, which Tensor.backward calls
(recomputation in backward)               patch of torch.utils.checkpoint.checkpoint
(torch.autograd.grad)                     patch of torch.autograd.grad
(no seam: example inputs of a trace)      patch of torch.jit.trace
on_loader, on_batch                       patches of the DataLoader's iterator: see `loading`
on_save                                   patch of torch.save
(batch norm in a sliced call)             patch of F.batch_norm: see `batch_norm`
(sequences in a sliced call)              patch of what pad_packed_sequence calls: see `packed_sequences`
(checks of values in a trial)             patch of F.one_hot: see `proof.value_checks`
(packed sequences in a trial)              patches of what makes and takes them: see `proof.packed`
(random numbers in a sliced call)         patches of torch's random functions: see `draws.table`
(gradients seen inside a sliced call)     patches of hooks, retain_grad and Function.apply: see `gradient_rescaling`
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from paceline.comm.call_site import script_line
from paceline.errors import ScriptError
from paceline.script.draws import table
from paceline.script.patches import all_of, patch
from paceline.script.proof import packed, value_checks
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.seams import batch_norm, direct_forward, gradient_rescaling, loading, packed_sequences
from paceline.script.seams.recomputing import checkpoints
from paceline.script.seams.stage import Stage
from paceline.torch_private import (
    OwnTensor,
    hooked_step,
    is_torchs_call,
    is_tracing,
    is_transformed,
    keep_out_of_graphs,
    parameters_in,
    set_call_known_to_dynamo,
    unhooked_step,
)


def find(stage: Stage) -> Callable[[], None]:
    """Installs the seams. Returns a function that removes them."""
    undo: list[Callable[[], None]] = [
        patch(nn.Module, "__call__", _calls(stage, nn.Module.__call__)),
        patch(torch.autograd, "backward", _backwards(stage, torch.autograd.backward)),
        _optimizers(stage),
        patch(torch, "compile", _compiles(stage, torch.compile)),
        patch(torch.jit, "trace", _traces(stage, torch.jit.trace)),
        patch(torch.utils.checkpoint, "checkpoint", checkpoints(stage, torch.utils.checkpoint.checkpoint)),
        patch(torch, "save", _saves(stage, torch.save)),
        loading.find(stage),
        *(_between_workers(stage) if stage.group.world > 1 and not stage.aside else ()),
        register_optimizer_step_pre_hook(lambda optimizer, *_: _before_step(stage, optimizer)).remove,
        register_optimizer_step_post_hook(lambda optimizer, *_: _after_step(stage, optimizer)).remove,
    ]

    return all_of([set_call_known_to_dynamo, *undo, lambda: all_of(stage.undo)()])


def _between_workers(stage: Stage) -> list[Callable[[], None]]:
    """The patches that are needed only if Paceline splits work: a run with one worker, and one whose script distributes
    itself, do not pay for them."""
    return [
        patch(torch.autograd, "grad", _gradients(stage, torch.autograd.grad)),
        *_slice_view_readings(stage),
        stage.views.averages.find(),
        batch_norm.find(stage),
        packed_sequences.find(stage),
        value_checks.find(),
        packed.find(),
        table.find(stage.views.draws),
        gradient_rescaling.find(stage),
        direct_forward.find(stage, partial(_is_seam, stage)),
        patch(type(torch.autograd.Variable), "__call__", _makes_variable),
        *(patch(owner, "vmap", _maps(torch.vmap)) for owner in (torch, torch.func)),
    ]


def _makes_variable(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.Variable(output)` is C++, which does not ask."""
    make_plain((args, kwargs))
    return type.__call__(cls, *args, **kwargs)


def _maps(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def vmap(*args: Any, **kwargs: Any) -> Any:
        mapped = plain(*args, **kwargs)
        return mapped if torch.compiler.is_compiling() else _given_plain_tensors(mapped)

    return vmap


def _calls(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not stage.depth and _is_seam(stage, self):
            return stage.call(plain, self, args, kwargs)
        # The two lines of torch's own call, in place of a call of it: most calls are inner ones, a hundred in a step,
        # and a further level of calls costs up to a microsecond each time.
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)

    def call_through(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not stage.depth and _is_seam(stage, self):
            return stage.call(plain, self, args, kwargs)
        return plain(self, *args, **kwargs)

    call_through.__name__ = "__call__"
    return __call__ if is_torchs_call(plain) else call_through


def _is_seam(stage: Stage, module: nn.Module) -> bool:
    """Whether a call of this module, now, is the outermost call of a module that has parameters."""
    if stage.depth or stage.aside or not _is_root(stage, module) or is_tracing():
        return False
    return not (stage.is_elsewhere() or stage.makes_samples())


def _compiles(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    def compile(*args: Any, **kwargs: Any) -> Any:
        # The compiled code runs inside an outermost call; the call itself stays in Python. Set up only when a script
        # compiles, because torch._dynamo takes long to import.
        if "call" not in vars(stage):
            _keep_paceline_out_of_graphs(stage)
            stage.call = torch.compiler.disable(stage.call, recursive=False)  # type: ignore[method-assign]
        compiled = plain(*args, **kwargs)
        return _given_plain_tensors(compiled) if stage.group.world > 1 and args else compiled

    return compile


def _traces(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    def trace(*args: Any, **kwargs: Any) -> Any:
        """Calls the model on example inputs, also to check the trace. The inputs may be uninitialised memory, which
        differs between workers (a picture of the graph for TensorBoard), and nothing depends on the numbers."""
        make_plain((args, kwargs))
        with stage.inside():
            return plain(*args, **kwargs)

    return trace


def _given_plain_tensors(compiled: Any) -> Any:
    """Compiled code outside a sliced call (a compiled loss) and a mapped function get plain tensors: these cannot be
    traced with own rows."""
    if isinstance(compiled, nn.Module):
        if next(parameters_in(compiled), None) is None:
            compiled.register_forward_pre_hook(lambda _, args, kwargs: _make_plain(args, kwargs), with_kwargs=True)
        return compiled

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _make_plain(args, kwargs)
        return compiled(*args, **kwargs)

    return call


def _make_plain(args: Any, kwargs: Any) -> None:
    make_plain((args, kwargs))


def _keep_paceline_out_of_graphs(stage: Stage) -> None:
    """Keeps torch.compile from starting a graph in Paceline's own functions or in a collective. Inside a graph, the
    patched module call is inlined like torch's own."""
    for name, method in vars(type(stage.group)).items():
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(stage.group, name, torch.compiler.disable(getattr(stage.group, name)))
    batch_norm.norm_whole_batch = torch.compiler.disable(batch_norm.norm_whole_batch)
    keep_out_of_graphs(nn.Module.__call__.__code__)
    if _is_ours(nn.Module.__call__):
        set_call_known_to_dynamo()
    for name, module in list(sys.modules.items()):
        if name.startswith("paceline."):
            owners = [
                module,
                *(thing for thing in vars(module).values() if isinstance(thing, type) and _is_ours(thing)),
            ]
            things = [thing for owner in owners for thing in vars(owner).values()]
            for function in (thing for thing in things if hasattr(thing, "__code__") and _is_ours(thing)):
                keep_out_of_graphs(inspect.unwrap(function).__code__)


def _is_ours(thing: Any) -> bool:
    """Whether Paceline defines it: a module also holds torch's objects under imported names."""
    is_tensor = isinstance(thing, type) and issubclass(thing, OwnTensor)
    return is_tensor or str(getattr(thing, "__module__", "")).startswith("paceline.")


def _is_root(stage: Stage, module: nn.Module) -> bool:
    if stage.only is not None:
        return module in stage.only
    return module in stage.roots or next(parameters_in(module), None) is not None


def _backwards(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        # Inside a sliced call or another backward (reentrant checkpointing), a backward is local: leave it unchanged.
        if stage.depth or stage.backward_depth or stage.aside or stage.makes_samples():
            plain(tensors, grad_tensors, *args, **kwargs)
            return
        if stage.group.world > 1 and stage.is_elsewhere():
            error = ScriptError(
                f"The backward at {script_line()} runs in another thread than the script, where the workers' gradients "
                "have no common order.",
                advice="Call backward in the script's main thread, or run the script on one worker: -n 1.",
            )
            raise stage.ending.carry(error)  # a thread that ends with an error does not end the script
        names = ("retain_graph", "create_graph", "grad_variables", "inputs")
        stage.backward(plain, tensors, grad_tensors, dict(zip(names, args, strict=False)) | kwargs)

    return backward


def _gradients(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Inside another backward (a solver's adjoint) gradients must be global, too: the solver steps by their size.
        inner = stage.backward_depth and (stage.recomputes() or stage.is_elsewhere())
        if stage.depth or stage.aside or stage.makes_samples() or inner or is_transformed():
            return plain(outputs, inputs, *args, **kwargs)
        return stage.gradients(plain, outputs, inputs, args, kwargs)

    return stage.guarded(grad)


def _saves(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        stage.emit("on_save", f)
        plain(stage.whole(obj), f, *args, **kwargs)

    return save


def _slice_view_readings(stage: Stage) -> list[Callable[[], None]]:
    """In the slice view, a loss that is read before its backward is first made global."""

    def reading(plain: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: torch.Tensor) -> Any:
            return plain(stage.views.whole_value(self))

        return read

    return [
        patch(torch.Tensor, "item", reading(torch.Tensor.item)),
        patch(torch.Tensor, "__float__", reading(torch.Tensor.__float__)),
    ]


def _optimizers(stage: Stage) -> Callable[[], None]:
    plain, undo = torch.optim.Optimizer.__init__, list[Callable[[], None]]()

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        undo.extend(lead_steps(stage, type(self)))
        plain(self, *args, **kwargs)
        stage.meet_optimizer(self)

    undo.append(patch(torch.optim.Optimizer, "__init__", __init__))
    return lambda: all_of(undo)()


def lead_steps(stage: Stage, kind: Any) -> list[Callable[[], None]]:
    """Leads this class's step through the stage, inside torch's own hooks: a worker that leaves an update to another
    one passes the seams before and after it all the same. An optimizer that wraps another one has a step of its own."""
    if not stage.replaces_steps or getattr(kind.step, "_paceline", False):
        return []
    plain = unhooked_step(kind.step)

    @functools.wraps(plain)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return stage.step(plain, self, args, kwargs)

    hooked = hooked_step(step)
    hooked.hooked = hooked._paceline = True  # type: ignore[attr-defined]
    return [patch(kind, "step", hooked)]


STEP_FRAMES = ("step", "wrapper")


def _before_step(stage: Stage, optimizer: Any) -> None:
    if stage.stepping and not _runs(stage.stepping[0], optimizer):  # the previous step raised, the script continued
        stage.stepping.clear()
        stage.watch.leave()
    if not stage.stepping:  # the step of an optimizer inside another one's step (SAM, Lookahead) is part of that step
        stage.emit("before_step", optimizer)
        stage.watch.enter("optimizer")
    stage.stepping.append(optimizer)


def _after_step(stage: Stage, optimizer: Any) -> None:
    # Its last entry: a class whose step calls that of its base class passes here twice. Inner steps that raised end
    # with it.
    last = max(number for number, other in enumerate(stage.stepping) if other is optimizer)
    del stage.stepping[last:]
    if stage.stepping:
        return
    stage.watch.leave()
    stage.emit("after_step", optimizer)


def _runs(outer: Any, optimizer: Any) -> bool:
    """Whether a method of the outer optimizer is running, while this one's step begins. If it is the same one: another
    step of it than the one that begins, whose first frame is torch's (`wrapper`)."""
    frame: Any = sys._getframe(2)
    found = 0
    while frame is not None:
        if frame.f_locals.get("self") is outer and (outer is not optimizer or frame.f_code.co_name in STEP_FRAMES):
            found += 1
        frame = frame.f_back
    return found > (outer is optimizer)
