"""Cuts a model into stages, and proves that the stages together compute what the model computes.

At the model's first call every worker still holds all of it. A trial on a few rows lists the calls of modules, in
order, with the share of the parameters (or of the time) before each. The cuts are the calls closest to even shares at
which the proof succeeds: the stages are run one after the other, with only the handed-over tensors between them. They
must make the model's own operations, in forward and backward, and give its outputs and gradients. If no cut is proven,
the model is refused with the reason.

Operations are compared exactly. Numbers are compared up to rounding, because a gradient that comes from several stages
is added up in another order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script import rng, tree
from paceline.script.draws.rows import Draws
from paceline.script.proof import side_effects, surroundings, trial
from paceline.script.proof.reach import Reach
from paceline.script.proof.reasons import name_of
from paceline.script.proof.recorder import CannotTry, Names
from paceline.strategies.pipelined.segment import CannotCut, MissingError, Parcel, Segments
from paceline.torch_private import BatchNorm, is_compiled, parameters_in

MOST_TRIALS = 24  # places tried for each cut
MOST_CARRIED = 64  # runs that find out which outputs are handed over besides the arguments of the cut
NEAR = 0.1  # of the parameters or of the time
TIMINGS = 3  # runs, of which the fastest counts
EMPTY = torch.empty(0, device="cpu")
ADDS = ("add", "add_")  # by which gradients of several uses are added up, inside a stage or between stages
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class Cutting:
    """A model in stages."""

    segments: Segments
    called: tuple[frozenset[str], ...]  # the units that each stage calls
    used: tuple[frozenset[int], ...]  # the parameters, by number, that each stage has gradients for
    draws: bool  # the model draws random numbers
    template: Any  # the model's output, with EMPTY for each tensor

    def also(self, other: Cutting) -> Cutting:
        """The same cuts, as proven in another mode of the model."""
        called = tuple(mine | its for mine, its in zip(self.called, other.called, strict=True))
        used = tuple(mine | its for mine, its in zip(self.used, other.used, strict=True))
        return Cutting(other.segments, called, used, self.draws or other.draws, other.template)

    def owners(self) -> dict[nn.Parameter, tuple[int, ...]]:
        """The stages that use each parameter. One that no unit has (the forward uses it itself) may be used by all."""
        units, everywhere = self.segments.units, tuple(range(len(self.called)))
        found: dict[nn.Parameter, tuple[int, ...]] = {}
        parameters = list(parameters_in(self.segments.module))
        for stage, paths in enumerate(self.called):
            for path in sorted(paths):
                for parameter in parameters_in(units[path]):
                    before = found.get(parameter, ())
                    found[parameter] = before if stage in before else (*before, stage)
        for stage, numbers in enumerate(self.used):  # also by the forward itself, in a stage other than its unit's
            for parameter in (parameters[number] for number in numbers):
                if stage not in found.get(parameter, everywhere):
                    found[parameter] = (*found[parameter], stage)
        return {parameter: found.get(parameter, everywhere) for parameter in parameters}

    def owner_of_buffers(self) -> list[tuple[torch.Tensor, int]]:
        units = self.segments.units
        return [
            (buffer, stage)
            for stage, paths in enumerate(self.called)
            for path in sorted(paths)
            for buffer in units[path].buffers()
        ]


@dataclass(frozen=True, slots=True)
class _Whole:
    """The model's own output, its gradients for made-up gradients of the output, and its operations."""

    output: Any
    parameters: list[nn.Parameter]
    starts: list[torch.Tensor | None]  # a gradient for each leaf of the output that needs one
    grads: list[torch.Tensor | None]
    forward: list[str]
    backward: Counter[str]

    @classmethod
    def of(cls, module: nn.Module, output: Any, forward: list[str]) -> _Whole:
        parameters = [p for p in parameters_in(module) if p.requires_grad]
        starts: list[torch.Tensor | None] = []
        for number, leaf in enumerate(tree.leaves(output)):
            starts.append(None)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                noise = torch.Generator().manual_seed(number)
                starts[-1] = torch.randn(leaf.shape, generator=noise, device="cpu").to(leaf.device, leaf.dtype)
        try:
            with _listed() as names:
                grads = _gradients(_pairs(tree.leaves(output), starts), parameters)
        except RuntimeError as error:
            raise CannotCut(f"its backward raised {type(error).__name__}: {error}") from error
        if any(grad is not None and grad.is_sparse for grad in grads):
            raise CannotCut("its embeddings have sparse gradients")
        return cls(tree.replace(output, _detached), parameters, starts, grads, forward, _of_backward(names))


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: str
    before: float  # share of the parameters, or of the time, before this call
    parameters: int  # before this call

    def may_follow(self, other: _Candidate) -> bool:
        """Whether there are parameters between the two, and neither is a part of the other."""
        apart = not f"{self.path}.".startswith(f"{other.path}.") and not f"{other.path}.".startswith(f"{self.path}.")
        return self.parameters > other.parameters and self.before > other.before and apart


def cut_model(
    group: Group,
    plain: Callable[..., Any],
    module: nn.Module,
    given: Any,
    stages: int,
    by: str,
    cuts: Sequence[str] | None = None,
) -> Cutting:
    """Every worker calls it, with the same model and arguments. `cuts`: proves these, for another mode of the model.
    ScriptError if the model cannot be cut."""
    refuse_hooks(module)
    try:
        with torch.inference_mode(False), torch.enable_grad(), trial.alone(module) as (copied, *_):
            _wake(copied)
            given = tree.replace(given, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
            whole, draws, candidates = _look(plain, copied, given, by)
            if cuts is None:
                cuts = _choose(plain, copied, given, stages, _of_rank_0(group, candidates), whole)
            tried, called, used = _try(plain, copied, given, cuts, whole)
    except (CannotCut, CannotTry) as why:
        raise refusal(module, stages, str(why)) from None
    segments = Segments(module, cuts)
    segments.wanted, segments.carried = tried.wanted, tried.carried
    template = tree.replace(whole.output, lambda leaf: EMPTY if isinstance(leaf, torch.Tensor) else leaf)
    return Cutting(segments, called, used, draws, template)


def _wake(module: nn.Module) -> None:
    """Replaces weights that are all zero by seeded noise, the same on every worker: zeros hide what comes before them
    (a head that is initialised to zero). Zero biases hide nothing, because they are added."""
    for seed, (name, p) in enumerate(module.named_parameters()):
        if p.is_floating_point() and p.numel() and not name.endswith("bias") and not p.detach().any():
            noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed), device="cpu")
            p.data = (noise / (p.shape[-1] if p.dim() > 1 else 4) ** 0.5).to(p.device, p.dtype)


@contextmanager
def _listed() -> Iterator[list[str]]:
    """Lists the operations that are made during the block."""
    draws = Draws()
    with draws.rehearsal(), Names(draws) as names:
        yield names.found


def _of_backward(names: list[str]) -> Counter[str]:
    return Counter(name for name in names if name not in ADDS)


def _buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Without batch norm's, which a stage may change."""
    norms = {id(buffer) for m in module.modules() if isinstance(m, BatchNorm) for buffer in m.buffers()}
    return {name: buffer for name, buffer in module.named_buffers() if id(buffer) not in norms}


def refusal(module: nn.Module, stages: int, why: str) -> ScriptError:
    return ScriptError(
        f"The model {name_of(module)} cannot be cut into {stages} stages of a pipeline: {why}.",
        advice="Choose another strategy: --strategy mirrored",
    )


def refuse_hooks(module: nn.Module) -> None:
    """Hooks see what one worker computes only, and would tell the script something else on each worker. Nor can a
    module be compiled after the model was cut: the compiler would look into the stages."""
    for path, inner in module.named_modules():
        if is_compiled(inner):
            raise ScriptError(
                f"The model {name_of(module)} was compiled after its first call, in which it was cut into the stages "
                "of a pipeline.",
                advice="Choose another strategy: --strategy mirrored",
            )
        for name in HOOKS:
            for hook in getattr(inner, name, {}).values():
                if not type(hook).__module__.startswith("torch.nn.utils"):
                    raise ScriptError(
                        f"The model {name_of(module)} has a hook on {path or 'itself'}, which in a pipeline would run "
                        "on one worker only.",
                        advice="Choose another strategy: --strategy mirrored",
                    )


def _look(plain: Callable[..., Any], module: nn.Module, given: Any, by: str) -> tuple[_Whole, bool, list[_Candidate]]:
    """The model's output and gradients, whether it draws random numbers, and the calls at which it might be cut."""
    if any(is_compiled(inner) or isinstance(inner, torch.jit.ScriptModule) for inner in module.modules()):
        raise CannotCut("it is compiled")
    paths = {id(inner): path for path, inner in module.named_modules()}
    seen: set[int] = set()
    calls: list[tuple[str, float, int]] = []  # path, seconds since the start, parameters before
    parameters = 0

    def note(inner: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal parameters
        calls.append((paths[id(inner)], time.perf_counter() - start, parameters))
        for parameter in parameters_in(inner, recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                parameters += parameter.numel()

    attributes = side_effects.look(module)
    buffers = {name: buffer.clone() for name, buffer in _buffers(module).items()}
    weights = {name: (p, p._version, p.data_ptr()) for name, p in module.named_parameters()}
    before = surroundings.look(module, Reach(module))
    streams, of_generators = rng.snapshot(), before.digest()
    handles = [inner.register_forward_pre_hook(note, with_kwargs=True) for inner in module.modules()]
    best: tuple[float, list[tuple[str, float, int]]] | None = None
    try:
        for _ in range(TIMINGS if by == "time" else 1):
            calls, parameters = [], 0
            seen.clear()
            rng.restore(streams)
            start = time.perf_counter()
            own = tree.replace(given, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
            versions = [leaf._version for leaf in tree.leaves(own) if isinstance(leaf, torch.Tensor)]
            with _listed() as names:
                whole = plain(module, *own[0], **own[1])
            if versions != [leaf._version for leaf in tree.leaves(own) if isinstance(leaf, torch.Tensor)]:
                raise CannotCut("its forward changes its arguments")
            for leaf in tree.leaves(whole):
                if isinstance(leaf, torch.Tensor) and type(leaf) not in (torch.Tensor, nn.Parameter):
                    raise CannotCut(f"its output is a {type(leaf).__name__}, and stages send plain tensors only")
            end = time.perf_counter() - start
            if best is None or end < best[0]:
                best = end, calls
    finally:
        for handle in handles:
            handle.remove()
    assert best is not None
    result = _Whole.of(module, whole, names)  # its backward may leave values, too
    if places := side_effects.changed(module, attributes):
        raise CannotCut(f"its forward leaves a value in {'.'.join(map(str, filter(None, next(iter(places)))))}")
    for name, buffer in _buffers(module).items():
        if name not in buffers or not torch.equal(buffer, buffers[name]):
            raise CannotCut(f"its forward changes the buffer {name}")
    for name, (parameter, version, address) in weights.items():
        if (parameter._version, parameter.data_ptr()) != (version, address):
            raise CannotCut(f"its forward changes the parameter {name}")
    if before.digest() != of_generators:
        raise CannotCut("its forward draws from a generator of its own")
    end, calls = best
    total = end if by == "time" else parameters
    often = Counter(path for path, *_ in calls)
    found = [
        _Candidate(path, (at if by == "time" else before) / max(total, 1e-9), before)
        for path, at, before in calls
        if path and often[path] == 1 and 0 < before < parameters
    ]
    draws = rng.drawn_since(streams)
    rng.restore(streams)
    return result, draws, found


def _of_rank_0(group: Group, candidates: list[_Candidate]) -> list[_Candidate]:
    """Times differ between workers: all workers take rank 0's."""
    mine = [[c.path, c.before, c.parameters] for c in candidates]
    return [_Candidate(*told) for told in group.gather_objects(mine, "the places at which a model may be cut")[0]]


def _choose(
    plain: Callable[..., Any], module: nn.Module, given: Any, stages: int, candidates: list[_Candidate], whole: _Whole
) -> list[str]:
    if not candidates:
        raise CannotCut("it has only one layer")
    chosen: list[_Candidate] = []
    for number in range(1, stages):
        why = ""
        behind = [
            c
            for c in candidates
            if not chosen or c.may_follow(chosen[-1])
            if len({later.parameters for later in candidates if later.may_follow(c)}) >= stages - 1 - number
        ]
        behind.sort(key=lambda c: (abs(c.before - number / stages), c.path.count(".")))
        near = [c for c in behind if abs(c.before - number / stages) < NEAR]
        # Near the even share, a place at which no connection skips the cut is better: less is sent.
        trials = [*((c, False) for c in near[:MOST_TRIALS]), *((c, True) for c in behind[:MOST_TRIALS])]
        for candidate, carry in trials:
            try:
                _try(plain, module, given, [candidate.path], whole, carry=carry)
            except CannotCut as error:
                why = str(error) if carry else why
                continue
            chosen.append(candidate)
            break
        else:
            raise CannotCut(why or f"it has only {len(chosen) + 1} layer{'s' * bool(chosen)} that could begin a stage")
    return [candidate.path for candidate in chosen]


def _try(
    plain: Callable[..., Any],
    module: nn.Module,
    given: Any,
    cuts: Sequence[str],
    whole: _Whole,
    *,
    carry: bool = True,
) -> tuple[Segments, tuple[frozenset[str], ...], tuple[frozenset[int], ...]]:
    """Runs the stages one after the other, and back. CannotCut if outputs or gradients are not the model's own, or if
    a connection skips a cut and `carry` does not allow that."""
    segments, before = Segments(module, cuts), rng.snapshot()
    try:
        for _ in range(MOST_CARRIED):  # finds out what is handed over
            calls: list[int] = []
            try:
                with torch.no_grad():
                    _run(plain, segments, given, calls)
                break
            except MissingError as missing:
                if not carry or not missing.sources:
                    raise
                rng.restore(before)
                for source in sorted(missing.sources):
                    origin = sum(source[0] >= count for count in calls)
                    for cut in range(origin, len(calls)):
                        if source not in segments.carried[cut]:
                            segments.carried[cut].append(source)
                segments.wanted = [None] * len(cuts)
        else:
            raise CannotCut("too many values go round the cut")
        rng.restore(before)
        names: list[str] = []
        output, called, passed = _run(plain, segments, given, [], names)
        with _listed() as of_backward:
            grads, used = _go_back(passed, whole)
    except CannotCut:
        raise
    except Exception as error:
        raise CannotCut(f"with a cut at {cuts[-1]} it raised {type(error).__name__}: {error}") from error
    finally:
        rng.restore(before)
    if names != whole.forward or _of_backward(of_backward) != whole.backward:
        raise CannotCut(f"with a cut at {cuts[-1]} it computes other operations")
    found, expected = tree.leaves(output), tree.leaves(whole.output)
    if tree.structure(output) != tree.structure(whole.output) or not all(map(_is_same, found, expected)):
        raise CannotCut(f"with a cut at {cuts[-1]} its output is another one")
    if not all(map(_is_same, grads, whole.grads)):
        raise CannotCut(f"with a cut at {cuts[-1]} its gradients are others")
    numbers = {id(parameter): number for number, parameter in enumerate(parameters_in(module))}
    own = tuple(frozenset(numbers[id(whole.parameters[i])] for i in some) for some in used)
    return segments, called, own


def _run(
    plain: Callable[..., Any], segments: Segments, given: Any, calls: list[int], names: list[str] | None = None
) -> tuple[Any, tuple[frozenset[str], ...], list[tuple[list[torch.Tensor], list[Any]]]]:
    """One stage after the other. Returns the output, the units that each stage called, and what entered and left each
    stage. `calls` gets the number of module calls before each cut, and `names` the operations of all stages."""
    called: list[set[str]] = [set() for _ in range(segments.last + 1)]
    passed: list[tuple[list[torch.Tensor], list[Any]]] = []
    parcel: Parcel | None = None
    output: Any = None
    for stage in range(segments.last + 1):
        at = rng.snapshot()
        with ExitStack() as stack:

            def begin(at: Any = at, stack: ExitStack = stack) -> None:
                rng.restore(at)
                if names is not None:
                    found = stack.enter_context(_listed())
                    stack.callback(names.extend, found)

            output, entered, parcel = segments.run(
                *(stage, plain, given[0], given[1], parcel),
                begin=begin,
                unit_called=lambda stage, path: called[stage].add(path),
            )
        passed.append((entered, tree.leaves(output) if parcel is None else parcel.tensors))
        if parcel is not None:
            calls.append(len(parcel.shapes))
            tensors = [t.detach().clone().requires_grad_(t.requires_grad) for t in parcel.tensors]
            parcel = Parcel(tensors, parcel.shapes)
    return output, tuple(map(frozenset, called)), passed


def _go_back(
    passed: list[tuple[list[torch.Tensor], list[Any]]], whole: _Whole
) -> tuple[list[torch.Tensor | None], list[set[int]]]:
    """The gradients of the parameters, from one stage after the other; and the numbers of those that each stage has."""
    used: list[set[int]] = []
    total: list[torch.Tensor | None] = [None] * len(whole.parameters)
    starts: list[torch.Tensor | None] = whole.starts
    for entered, left in reversed(passed):
        needy = [t for t in entered if t.requires_grad]
        found = _gradients(_pairs(left, starts), [*needy, *whole.parameters])
        used.insert(0, {n for n, grad in enumerate(found[len(needy) :]) if grad is not None})
        total = [_sum(before, grad) for before, grad in zip(total, found[len(needy) :], strict=True)]
        of_entered = dict(zip(map(id, needy), found, strict=False))
        starts = [of_entered.get(id(t)) for t in entered]
    return total, used


def _pairs(leaves: Sequence[Any], starts: Sequence[torch.Tensor | None]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(t, g) for t, g in zip(leaves, starts, strict=True) if g is not None and t.requires_grad]


def _gradients(
    pairs: list[tuple[torch.Tensor, torch.Tensor]], wanted: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    if not pairs or not wanted:
        return [None] * len(wanted)
    ends, starts = zip(*pairs, strict=True)
    return list(torch.autograd.grad(ends, wanted, starts, allow_unused=True))


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return other if one is None else one if other is None else one + other


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _is_same(found: Any, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return type(found) is type(expected) and (found == expected or hasattr(found, "__dict__"))
    if not isinstance(found, torch.Tensor) or (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    if not found.numel() or not (found.is_floating_point() or found.is_complex()):
        return torch.equal(found, expected)
    coarse = torch.is_autocast_enabled(found.device.type) or (found.is_cuda and torch.backends.cuda.matmul.allow_tf32)
    rounding = torch.finfo(torch.bfloat16 if coarse else found.dtype).eps ** 0.75  # of sums in another order
    found, expected = torch.nan_to_num(found), torch.nan_to_num(expected)
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())
