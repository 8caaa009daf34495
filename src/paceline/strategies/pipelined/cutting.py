"""Cuts a model into stages, and proves that the stages together compute what the model computes.

At the model's first call every worker still holds all of it. A dry run on a few rows lists the calls of modules, in
order, with the share of the parameters (or of the time) before each. The cuts are the calls closest to even shares at
which the proof succeeds: the stages are run one after the other, with only the handed-over tensors between them, and
the output is compared with the model's own. If none does, the model is refused with the reason.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script import rng, tree
from paceline.script.slicing import side_effects
from paceline.script.slicing.comparing import close
from paceline.script.slicing.dry_run import asleep, own_buffers, undisturbed, woken
from paceline.script.slicing.generators import Generators
from paceline.script.slicing.reasons import name_of
from paceline.strategies.pipelined.segment import CannotCut, Parcel, Segments
from paceline.torch_private import is_compiled

MOST_TRIALS = 24  # places tried for each cut
TIMINGS = 3  # runs, of which the fastest counts
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class Cutting:
    """A model in stages."""

    segments: Segments
    called: tuple[frozenset[str], ...]  # the units that each stage calls
    draws: bool  # the model draws random numbers
    template: Any  # the model's output, with ... for each tensor

    def also(self, other: Cutting) -> Cutting:
        """The same cuts, as proven in another mode of the model."""
        called = tuple(mine | its for mine, its in zip(self.called, other.called, strict=True))
        return Cutting(other.segments, called, self.draws or other.draws, other.template)

    def owners(self) -> dict[nn.Parameter, tuple[int, ...]]:
        """The stages that use each parameter. One that no unit has (the forward uses it itself) may be used by all."""
        units, everywhere = self.segments.units, tuple(range(len(self.called)))
        found: dict[nn.Parameter, tuple[int, ...]] = {}
        for stage, paths in enumerate(self.called):
            for path in sorted(paths):
                for parameter in units[path].parameters():
                    before = found.get(parameter, ())
                    found[parameter] = before if stage in before else (*before, stage)
        return {parameter: found.get(parameter, everywhere) for parameter in self.segments.module.parameters()}

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
    """The model's own output, and its gradients for made-up gradients of the output."""

    output: Any
    parameters: list[nn.Parameter]
    starts: list[torch.Tensor | None]  # a gradient for each leaf of the output that needs one
    grads: list[torch.Tensor | None]

    @classmethod
    def of(cls, module: nn.Module, output: Any) -> _Whole:
        parameters = [p for p in module.parameters() if p.requires_grad]
        starts: list[torch.Tensor | None] = []
        for number, leaf in enumerate(tree.leaves(output)):
            starts.append(None)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                noise = torch.Generator().manual_seed(number)
                starts[-1] = torch.randn(leaf.shape, generator=noise, device="cpu").to(leaf.device, leaf.dtype)
        try:
            grads = _gradients(_pairs(tree.leaves(output), starts), parameters)
        except RuntimeError as error:
            raise CannotCut(f"its backward raised {type(error).__name__}: {error}") from error
        return cls(tree.replace(output, _detached), parameters, starts, grads)


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: str
    before: float  # share of the parameters, or of the time, before this call


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
    with undisturbed(module, still=()), woken(asleep(module)), torch.inference_mode(False), torch.enable_grad():
        given = tree.replace(given, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
        try:
            output, draws, candidates = _look(plain, module, given, by)
            whole = _Whole.of(module, output)
            if cuts is None:
                cuts = _choose(plain, module, given, stages, _of_rank_0(group, candidates), whole)
            segments, called = _try(plain, module, given, cuts, whole)
        except CannotCut as why:
            raise refusal(module, stages, str(why)) from None
    template = tree.replace(output, lambda leaf: ... if isinstance(leaf, torch.Tensor) else leaf)
    return Cutting(segments, called, draws, template)


def refusal(module: nn.Module, stages: int, why: str) -> ScriptError:
    return ScriptError(
        f"The model {name_of(module)} cannot be cut into {stages} stages of a pipeline: {why}.",
        advice="Choose another strategy: --strategy mirrored",
    )


def refuse_hooks(module: nn.Module) -> None:
    """Hooks see what one worker computes only, and would tell the script something else on each worker."""
    for path, inner in module.named_modules():
        for name in HOOKS:
            for hook in getattr(inner, name, {}).values():
                if not type(hook).__module__.startswith("torch.nn.utils"):
                    raise ScriptError(
                        f"The model {name_of(module)} has a hook on {path or 'itself'}, which in a pipeline would run "
                        "on one worker only.",
                        advice="Choose another strategy: --strategy mirrored",
                    )


def _look(plain: Callable[..., Any], module: nn.Module, given: Any, by: str) -> tuple[Any, bool, list[_Candidate]]:
    """The model's output, whether it draws random numbers, and the calls at which it might be cut."""
    if is_compiled(module):
        raise CannotCut("it is compiled")
    paths = {id(inner): path for path, inner in module.named_modules()}
    seen: set[int] = set()
    calls: list[tuple[str, float, int]] = []  # path, seconds since the start, parameters before
    parameters = 0

    def note(inner: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal parameters
        calls.append((paths[id(inner)], time.perf_counter() - start, parameters))
        for parameter in inner.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                parameters += parameter.numel()

    attributes = side_effects.look(module)
    buffers = {key: buffer.clone() for key, buffer in own_buffers(module)}
    generators = Generators(module)
    streams, own = rng.snapshot(), generators.digest()
    handles = [inner.register_forward_pre_hook(note, with_kwargs=True) for inner in module.modules()]
    best: tuple[float, list[tuple[str, float, int]]] | None = None
    try:
        for _ in range(TIMINGS if by == "time" else 1):
            calls, parameters = [], 0
            seen.clear()
            rng.restore(streams)
            start = time.perf_counter()
            whole = plain(module, *given[0], **given[1])
            end = time.perf_counter() - start
            if best is None or end < best[0]:
                best = end, calls
    finally:
        for handle in handles:
            handle.remove()
    assert best is not None
    if places := side_effects.changed(module, attributes):
        raise CannotCut(f"its forward leaves a value in {'.'.join(map(str, filter(None, next(iter(places)))))}")
    for key, buffer in own_buffers(module):
        if key not in buffers or not torch.equal(buffer, buffers[key]):
            raise CannotCut(f"its forward changes the buffer {'.'.join(filter(None, key))}")
    if generators.digest() != own:
        raise CannotCut("its forward draws from a generator of its own")
    end, calls = best
    total = end if by == "time" else parameters
    often = Counter(path for path, *_ in calls)
    found = [
        _Candidate(path, (at if by == "time" else before) / max(total, 1e-9))
        for path, at, before in calls
        if path and often[path] == 1 and 0 < before < parameters
    ]
    draws = rng.drawn_since(streams)
    rng.restore(streams)
    return whole, draws, found


def _of_rank_0(group: Group, candidates: list[_Candidate]) -> list[_Candidate]:
    """Times differ between workers: all workers take rank 0's."""
    told = group.gather_objects([[c.path, c.before] for c in candidates], "the places at which a model may be cut")
    return [_Candidate(path, before) for path, before in told[0]]


def _choose(
    plain: Callable[..., Any], module: nn.Module, given: Any, stages: int, candidates: list[_Candidate], whole: _Whole
) -> list[str]:
    if not candidates:
        raise CannotCut("it has only one layer")
    chosen: list[_Candidate] = []
    for number in range(1, stages):
        why = ""
        behind = [c for c in candidates if not chosen or c.before > chosen[-1].before]
        behind.sort(key=lambda c: (abs(c.before - number / stages), c.path.count(".")))
        for candidate in behind[:MOST_TRIALS]:
            try:
                _try(plain, module, given, [candidate.path], whole)
            except CannotCut as error:
                why = why or str(error)
                continue
            chosen.append(candidate)
            break
        else:
            raise CannotCut(why or f"it has only {len(chosen) + 1} layers that could begin a stage")
    return [candidate.path for candidate in chosen]


def _try(
    plain: Callable[..., Any], module: nn.Module, given: Any, cuts: Sequence[str], whole: _Whole
) -> tuple[Segments, tuple[frozenset[str], ...]]:
    """Runs the stages one after the other, and back. CannotCut if outputs or gradients are not the model's own."""
    segments, before = Segments(module, cuts), rng.snapshot()
    called: list[set[str]] = [set() for _ in range(len(cuts) + 1)]
    parcel: Parcel | None = None
    output: Any = None
    passed: list[tuple[list[torch.Tensor], list[Any]]] = []  # of each stage: what entered it, and what left it
    try:
        for stage in range(len(cuts) + 1):
            at = rng.snapshot()
            output, entered, parcel = segments.run(
                stage,
                plain,
                given[0],
                given[1],
                parcel,
                begin=lambda at=at: rng.restore(at),  # type: ignore[misc]
                unit_called=lambda stage, path: called[stage].add(path),
            )
            passed.append((entered, tree.leaves(output) if parcel is None else parcel.tensors))
            if parcel is not None:
                parcel.tensors = [t.detach().clone().requires_grad_(t.requires_grad) for t in parcel.tensors]
        grads = _go_back(passed, segments, whole)
    except CannotCut:
        raise
    except Exception as error:
        raise CannotCut(f"with a cut at {cuts[-1]} it raised {type(error).__name__}: {error}") from error
    finally:
        rng.restore(before)
    found, expected = tree.leaves(output), tree.leaves(whole.output)
    if tree.structure(output) != tree.structure(whole.output) or not all(map(_is_same, found, expected)):
        raise CannotCut(f"with a cut at {cuts[-1]} its output is another one")
    if not all(map(_is_same_gradient, grads, whole.grads)):
        raise CannotCut(f"with a cut at {cuts[-1]} its gradients are others")
    return segments, tuple(map(frozenset, called))


def _go_back(
    passed: list[tuple[list[torch.Tensor], list[Any]]], segments: Segments, whole: _Whole
) -> list[torch.Tensor | None]:
    """The gradients of the parameters, from the backward of one stage after the other."""
    total: list[torch.Tensor | None] = [None] * len(whole.parameters)
    starts: list[torch.Tensor | None] = whole.starts
    for stage in range(len(passed) - 1, -1, -1):
        entered, left = passed[stage]
        needy = [t for t in entered if t.requires_grad]
        found = _gradients(_pairs(left, starts), [*needy, *whole.parameters])
        total = [_sum(before, grad) for before, grad in zip(total, found[len(needy) :], strict=True)]
        if stage:
            of_entered = dict(zip(map(id, needy), found, strict=False))
            before = iter([of_entered.get(id(t)) for t in entered])
            # On the first run of a cut all tensors left the stage before, and some of them entered.
            many, wanted = len(passed[stage - 1][1]), segments.wanted[stage - 1] or []
            tensors = segments.tensors[stage - 1] if len(wanted) < many else wanted
            starts = [next(before) if i in wanted else None for i in tensors]
    return total


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


def _is_same_gradient(found: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if found is None or expected is None:
        return found is None and expected is None
    return close(found, expected)


def _is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return close(found, expected)
    return type(found) is type(expected) and (found == expected or hasattr(found, "__dict__"))
