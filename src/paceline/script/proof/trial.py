"""Trial calls: a module is called on some rows, on a copy, and everything that the call does is noted.

A trial leaves nothing behind. The copy shares the memory of the weights, which must not be written to, and owns all the
rest: buffers, counters, objects, iterators, optimizers. Variables of the script, of hooks and of classes are put back.
What the call prints or writes to files is dropped, and compared between trials. Random streams are put back.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import copy
import functools
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.script import rng, tree
from paceline.script.draws.rows import Drawn, Draws
from paceline.script.proof import bounds, packed, side_effects, surroundings
from paceline.script.proof.mutations import Containers
from paceline.script.proof.prints import is_seen, logged
from paceline.script.proof.reach import Reach
from paceline.script.proof.reads import Reads, Undecided, taken
from paceline.script.proof.recorder import CannotTry, Op, Recorder, reads_noted, require_same, storages_of
from paceline.script.proof.side_effects import Place
from paceline.script.rows.crossings import Split
from paceline.script.rows.origins import leaves_behind
from paceline.torch_private import (
    OwnTensor,
    is_dtensor,
    is_fsdps_attribute,
    is_fsdps_hook,
    named_parameters_in,
    own_saved_tensors,
    parameters_in,
    plain_class,
    unoptimized_execution,
)

_grad, _backward = torch.autograd.grad, torch.autograd.backward  # bound before the script's are replaced
_copy_tensor = torch.Tensor.__deepcopy__
P = ParamSpec("P")
T = TypeVar("T")
ATOMS = (type(None), bool, int, float, str)  # need no copy


@dataclass(slots=True)
class Traced:
    """What a trial call did. Numbers are those of the recorder."""

    forward: list[Op] = field(default_factory=list)
    backward: list[Op] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)  # all that is the same for all rows: parameters, buffers
    held: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # tensors in attributes, and their shapes
    given: list[int | None] = field(default_factory=list)  # a leaf of the arguments each, before and after the call
    given_after: list[int | None] = field(default_factory=list)
    output: Any = None
    outputs: list[int | None] = field(default_factory=list)  # a leaf of the output each
    states: dict[Place, Any] = field(default_factory=dict)  # tensors and numbers that the call left in attributes
    state_numbers: dict[Place, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)  # other tensors that it has changed or left, by name
    buffers: dict[tuple[str, str], int] = field(default_factory=dict)  # after the call
    starts: list[tuple[int, int | Place]] = field(
        default_factory=list
    )  # gradients that backward began with, and of what
    grads: dict[str, int] = field(default_factory=dict)  # of parameters by name, and of arguments by number
    zero_grads: set[str] = field(default_factory=set)
    memory: dict[Any, Any] = field(default_factory=dict)  # Python values that the call has changed
    told: str = ""  # what the call printed or wrote
    drawn: tuple[Drawn, ...] = ()
    draws_in_numpy: bool = False
    ends_at_read: bool = False  # of which it is not known how its number is made


def in_own_context(trial: Callable[P, T]) -> Callable[P, T]:
    """Variables of the context that a trial sets are set for the trial alone."""

    @functools.wraps(trial)
    def run_apart(*args: P.args, **kwargs: P.kwargs) -> T:
        return contextvars.copy_context().run(trial, *args, **kwargs)

    return run_apart


@in_own_context
def run(
    plain: Callable[..., Any],
    module: nn.Module,
    given: Any,
    draws: Draws,
    *,
    part: Split | None = None,
    expected: tuple[Drawn, ...] = (),
    prepare: Callable[[nn.Module], None] = lambda copied: None,
    like: Traced | None = None,
    reads: Reads | None = None,
) -> Traced:
    """A trial call with these arguments, which it may change. `part`: which rows they are, and `expected` the draws for
    all rows. `prepare` may change the copy first. `like`: a trial whose
    operations it must make. `reads`: what is known of them; the trial ends at the first other one. CannotTry if it is
    impossible; the module's own exceptions as they are."""
    traced = Traced()
    with alone(module) as (copied, guarded, told, reach):
        prepare(copied)
        recorder = Recorder(draws, guarded, lines=part is None or part.group.rank == 0)
        named = dict(named_parameters_in(copied, remove_duplicate=False))
        traced.weights = [recorder.number(t) for t in (*parameters_in(copied), *copied.buffers()) if not is_lazy(t)]
        leaves = tree.leaves(given)
        traced.given = [recorder.number(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        attributes, seen = side_effects.look(copied), surroundings.look(copied, reach)
        weights = {name: recorder.number(p) for name, p in named.items() if not is_lazy(p)}
        before, python = (seen.digest(), _numpy_position()), rng.python_digest()
        numpy_draws = draws.numpy_draws
        containers = Containers(given)
        held = {where: recorder.number(tensor) for where, tensor in seen.tensors.items()}
        traced.held = [(held[where], tuple(tensor.shape)) for where, tensor in seen.tensors.items()]
        starts = recorder.all_numbers()

        def is_untouched() -> bool:
            """Whether the call has changed nothing yet but torch's, numpy's and Python's streams."""
            now = surroundings.look(copied, reach)
            tensors = [*copied.buffers(), *leaves, *now.tensors.values()]
            same = all(recorder.known(t) in starts for t in tensors if isinstance(t, torch.Tensor) and not is_lazy(t))
            same = same and now.digest() == before[0] and not surroundings.changes(seen.values, now.values)
            return same and not side_effects.changed(copied, attributes) and not told()

        take = (reads or Reads()).noted(recorder, set(traced.weights), is_untouched)
        try:
            with (
                draws.rehearsal(part, expected) as at,
                reads_noted(recorder),
                taken(take),
                packed.apart(tried=True),
                recorder,
            ):
                output = containers.told(plain(copied, *given[0], **given[1]))
        except Undecided:
            traced.forward, traced.ends_at_read = recorder.ops, True
            return traced
        if [name for name, _ in named_parameters_in(copied, remove_duplicate=False)] != list(named):
            raise CannotTry("it makes parameters")
        drew = (seen.digest(), _numpy_position()) != before and draws.numpy_draws == numpy_draws
        if drew or rng.python_digest() != python:
            raise CannotTry("it draws random numbers one by one (Python's random, numpy's generators)")
        traced.forward, recorder.ops = recorder.ops, []
        if like is not None:
            require_same(like.forward, traced.forward)
        traced.output, traced.drawn = output, tuple(at.drawn or ())
        traced.draws_in_numpy = draws.numpy_draws != numpy_draws
        number = lambda leaf: recorder.number(leaf) if isinstance(leaf, torch.Tensor) else None  # noqa: E731
        traced.given_after, traced.outputs = [number(leaf) for leaf in leaves], list(map(number, tree.leaves(output)))
        traced.states = side_effects.changed(copied, attributes)
        traced.state_numbers = {p: recorder.number(v) for p, v in traced.states.items() if isinstance(v, torch.Tensor)}
        states = {id(value) for value in traced.states.values()}
        now = surroundings.look(copied, reach)
        for where, tensor in now.tensors.items():
            if id(tensor) not in states and held.get(where) != recorder.number(tensor):
                traced.kept[surroundings.name_of(where)] = recorder.number(tensor)
        traced.buffers = {
            (path, name): recorder.number(buffer)
            for path, m in copied.named_modules()
            for name, buffer in m._buffers.items()
            if buffer is not None and not is_lazy(buffer)
        }
        for name, parameter in named_parameters_in(copied):
            if not is_lazy(parameter) and weights.get(name) != recorder.number(parameter):
                traced.kept[f"the parameter {name}"] = recorder.number(parameter)
        traced.memory = surroundings.changes(seen.values, now.values)
        if torch.is_grad_enabled():
            _go_back(traced, recorder, named, leaves)
        traced.told = told()
    return traced


def _go_back(traced: Traced, recorder: Recorder, named: dict[str, Any], leaves: list[Any]) -> None:
    """The backward of the output, and of what the call left in attributes, from random gradients."""
    begun: list[tuple[torch.Tensor, int | Place]] = []
    for i, leaf in enumerate(tree.leaves(traced.output)):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            begun.append((leaf, i))
    begun += [(v, p) for p, v in traced.states.items() if isinstance(v, torch.Tensor) and v.requires_grad]
    asked = {name: p for name, p in named.items() if p.requires_grad and not is_lazy(p)}
    asked |= {str(i): t for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf}
    if not begun or not asked:
        return
    starts: list[torch.Tensor] = []
    with torch.no_grad():
        for leaf, what in begun:
            start = torch.full_like(leaf, 1.0 + len(starts))
            starts.append(start)
            traced.starts.append((recorder.number(start), what))
    autocast = [
        torch.autocast(kind, enabled=False) for kind in ("cpu", *(["cuda"] if torch.cuda.is_initialized() else []))
    ]
    with contextlib.ExitStack() as stack:
        for off in autocast:
            stack.enter_context(off)
        stack.enter_context(reads_noted(recorder))
        stack.enter_context(recorder)
        found = _gradients([leaf for leaf, _ in begun], starts, list(asked.values()))
    traced.backward = recorder.ops
    for name, grad in zip(asked, found, strict=True):
        if grad is not None:
            traced.grads[name] = recorder.number(grad)
            if not (grad.to_dense() if grad.layout is not torch.strided else grad).any():
                traced.zero_grads.add(name)


def _gradients(outputs: list[Any], starts: list[Any], asked: list[Any]) -> list[Any]:
    try:
        return list(_grad(outputs, asked, starts, allow_unused=True, retain_graph=True))
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
    own = {id(leaf) for leaf in asked}
    if any(id(leaf) not in own for leaf in leaves_behind(outputs)):
        raise CannotTry("it has reentrant checkpoints, and parameters of other modules")
    _backward(outputs, starts)
    return [leaf.grad for leaf in asked]


def _numpy_position() -> Any:
    state: Any = np.random.get_state()
    return state[2]


@dataclass(slots=True)
class Before:
    """What a trial of a module may change, as it is before, and what the module's code can reach."""

    reach: Reach
    state: surroundings.State
    data: list[tuple[Any, torch.Tensor]]  # of the parameters

    @classmethod
    def of(cls, module: nn.Module) -> Before:
        reach = Reach(module)
        data = [(p, p.data) for p in parameters_in(module) if not is_lazy(p) and not is_dtensor(p)]
        # With the module's own attributes: a method in one of the copy may be bound to the module itself.
        return cls(reach, surroundings.State(module, reach), data)

    def put_back(self) -> None:
        self.state.put_back()
        for parameter, data in self.data:
            if parameter.data_ptr() != data.data_ptr():
                parameter.data = data


_series: list[tuple[nn.Module, list[Before]]] = []


@contextlib.contextmanager
def in_series(module: nn.Module) -> Iterator[None]:
    """Inside it, each trial of this module finds everything as the first one did, which alone looks what that is."""
    _series.append((module, []))
    try:
        yield
    finally:
        _series.pop()


def _before(module: nn.Module) -> Before:
    if not _series or _series[-1][0] is not module:
        return Before.of(module)
    known = _series[-1][1]
    if not known:
        known.append(Before.of(module))
    return known[0]


@contextlib.contextmanager
def alone(module: nn.Module) -> Iterator[tuple[nn.Module, dict[int, str], Callable[[], str], Reach]]:
    """A copy of the module, the storages that must not be written to, what was printed, and what the module's code can
    reach. Afterwards everything is as it was."""
    pyro: Any = sys.modules.get("pyro.poutine.runtime")
    if pyro is not None and pyro.am_i_wrapped():
        raise CannotTry("it is called inside a handler of Pyro, which would take trial calls for the script's")
    before = _before(module)
    caching = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # it would keep casts of the copy's weights
    log = logging.Logger.callHandlers
    written = io.StringIO()
    try:
        copied, shared = copy_of(module)
        logging.Logger.callHandlers = _note_line(written)  # type: ignore[method-assign, assignment]
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(written),
            contextlib.redirect_stderr(written),
            _writes_dropped(written),
            torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext(),
            own_saved_tensors(),
            bounds.on_gpus(),
            torch.autograd.set_detect_anomaly(False),
            unoptimized_execution(False),
        ):
            warnings.simplefilter("ignore")
            yield copied, storages_of(shared), written.getvalue, before.reach
    finally:
        logging.Logger.callHandlers = log  # type: ignore[method-assign]
        torch.set_autocast_cache_enabled(caching)
        before.put_back()


def _note_line(written: io.StringIO) -> Callable[[logging.Logger, logging.LogRecord], None]:
    """Takes the lines of a log that somebody gets."""

    def note(logger: logging.Logger, record: logging.LogRecord) -> None:
        if is_seen(logger):
            written.write(logged(record))

    return note


@contextlib.contextmanager
def _writes_dropped(written: io.StringIO) -> Iterator[None]:
    """Files that are opened to write get nothing."""
    plain, save = builtins.open, torch.save

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not any(letter in mode for letter in "wax+"):
            return plain(file, mode, *args, **kwargs)
        return io.BytesIO() if "b" in mode else _Text(written)

    builtins.open = io.open = open_file
    torch.save = lambda *args, **kwargs: None
    try:
        yield
    finally:
        builtins.open = io.open = plain
        torch.save = save


class _Text(io.StringIO):
    def __init__(self, written: io.StringIO) -> None:
        super().__init__()
        self._written = written

    def write(self, text: str) -> int:
        return self._written.write(text)


def copy_of(module: nn.Module) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A copy whose parameters show the memory of the module's, and whose other values are its own; and the parameters
    by name. Of a parameter that a strategy has divided only the shape counts: a proof depends on no weight's value."""
    memo: dict[int, Any] = {}
    shared: dict[str, torch.Tensor] = {}
    for name, parameter in named_parameters_in(module):
        memo[id(parameter)] = _alias(parameter)
        shared[name] = memo[id(parameter)]
    inner = list(module.modules())
    for m in inner:
        if isinstance(m, torch.jit.ScriptModule):
            memo[id(m)] = m
            shared |= {f"{name} (a buffer)": b for name, b in m.named_buffers()} | dict(m.named_parameters())
        else:
            memo[id(m)] = object.__new__(plain_class(m))
    at = ""
    torch.Tensor.__deepcopy__ = _copied_tensor  # type: ignore[method-assign]
    try:
        for path, m in module.named_modules():
            if memo[id(m)] is m:
                continue
            for name, value in m.__dict__.items():
                if is_fsdps_attribute(name):
                    continue  # the copy is plain, and has whole weights
                at = f"{path}.{name}".lstrip(".")
                memo[id(m)].__dict__[name] = _copied_attribute(name, value, memo)
    except Exception as error:  # copying a script's own class may raise anything
        raise CannotTry(f"its attribute {at} cannot be copied ({str(error).splitlines()[0][:80]})") from error
    finally:
        torch.Tensor.__deepcopy__ = _copy_tensor  # type: ignore[method-assign]
    return memo[id(module)], shared


def _copied_attribute(name: str, value: Any, memo: dict[int, Any]) -> Any:
    if name == "_compiled_call_impl":
        return None
    if type(value) in ATOMS:
        return value
    if name in side_effects.OWN and isinstance(value, dict) and not value:  # no hooks, no buffers
        return type(value)()
    if name.endswith("_hooks") and isinstance(value, dict):
        # Hooks are the script's: what they keep is looked at where it is, and put back. Methods are those of the copy.
        made = copy.copy(value)
        made.clear()
        made.update((key, _rebound(hook, memo)) for key, hook in value.items() if not _is_ours(hook))
        return made
    if hasattr(value, "__wrapped__") and _is_ours(value):  # a mod's, during a call
        return _rebound(value.__wrapped__, memo)
    return copy.deepcopy(value, memo)


def _is_ours(hook: Any) -> bool:
    return is_fsdps_hook(hook) or str(getattr(hook, "__module__", None) or type(hook).__module__).startswith(
        "paceline."
    )


def _rebound(hook: Any, memo: dict[int, Any]) -> Any:
    owner = getattr(hook, "__self__", None)
    return hook.__func__.__get__(memo[id(owner)]) if isinstance(owner, nn.Module) and id(owner) in memo else hook


def _alias(parameter: Any) -> Any:
    if is_lazy(parameter):
        return parameter
    if _computes_itself(parameter):
        raise CannotTry(f"one of its weights is a {type(parameter).__name__}, which computes in a way of its own")
    if type(parameter) not in (torch.Tensor, nn.Parameter) or is_dtensor(parameter):
        one = torch.full((), 0.01, dtype=parameter.dtype, device=parameter.device)
        return nn.Parameter(one.expand(parameter.shape), parameter.requires_grad)
    return nn.Parameter(parameter.detach(), parameter.requires_grad)


def _computes_itself(parameter: Any) -> bool:
    """Whether a library's class decides what operations on this weight compute (quantised weights): a trial with plain
    numbers in its place would show other operations."""
    kind = type(parameter)
    is_plain = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ or is_dtensor(parameter)
    return not is_plain and not isinstance(parameter, OwnTensor)


def _copied_tensor(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Also of a tensor with a graph, which torch does not copy."""
    if id(self) not in memo:
        if type(self) is not torch.Tensor:
            return _copy_tensor(self, memo)
        memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
    return memo[id(self)]
