"""Every function of torch, as torch's own tests call it: what the proof finds of its results holds for their values.

Arguments are cut along their first dimension; the function runs on all rows (A), on the first (B) and on the others
(C). Rows must then be A's rows, a sum B + C, and so on. A function that cannot be followed is no failure: it is not
sliced.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from paceline.script.draws.rows import Draws
from paceline.script.proof.induction import Induction
from paceline.script.proof.kinds import SAME, Kind, Parts, rows
from paceline.script.proof.recorder import CannotTry, Recorder, reads_noted

SAMPLES = 4  # of each function
MORE = 8  # times as many rows: numbers of an operation may count them
LEFT_OUT = ("empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "uniform", "exponential", "cauchy",
            "geometric", "log_normal", "rrelu", "as_strided", "resize", "batch_norm")  # fmt: skip


@pytest.fixture(autouse=True)
def flags_may_be_set() -> Iterator[None]:
    """What torch's own tests import forbids every later test of this process to set flags of torch."""
    yield
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True


def ways(every: int) -> Iterator[tuple[str, Any, list[Any], Any, tuple[int, ...]]]:
    """Of every n-th function: name, function, leaves of its arguments, their structure, and the leaves that are cut."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db[::every]:
        if torch.float64 not in op.dtypes or any(name in op.name for name in LEFT_OUT):
            continue
        torch.manual_seed(0)
        given = op.sample_inputs("cpu", torch.float64, requires_grad=False)
        for number, sample in enumerate(itertools.islice(given, SAMPLES)):
            leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
            fitting = [i for i, leaf in enumerate(leaves) if _fits(leaf)]
            many = [i for i in fitting if leaves[i].shape[0] == leaves[fitting[0]].shape[0]]
            for cut in dict.fromkeys([*((i,) for i in fitting), tuple(many)] if fitting else []):
                yield f"{op.name} {op.variant_test_name} {number} {cut}", op.op, leaves, spec, cut


def _fits(leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or not leaf.dim():
        return False
    return 4 <= leaf.shape[0] <= 64 and leaf.numel() > 0


def judge(f: Any, leaves: list[Any], spec: Any, cut: tuple[int, ...]) -> Iterator[tuple[Kind, list[torch.Tensor]]]:
    """What is found of each result, and its three values. CannotTry, or an error of torch's, if nothing is."""
    whole = leaves[cut[0]].shape[0]
    parts, recorders, made = Parts.of(whole, whole // 2), [], []
    for part in range(3):
        given = [
            parts.cut(leaf, rows(0), part).clone() if i in cut else leaf.clone() if torch.is_tensor(leaf) else leaf
            for i, leaf in enumerate(leaves)
        ]
        recorder = Recorder(Draws(), {}, lines=False)
        recorder._draws.on = True
        numbers = [recorder.number(leaf) if torch.is_tensor(leaf) else None for leaf in given]
        x, args, kwargs = tree_unflatten(given, spec)
        with torch.no_grad(), reads_noted(recorder), recorder:
            out = [leaf for leaf in tree_flatten(f(x, *args, **kwargs))[0] if torch.is_tensor(leaf)]
        recorders.append((recorder, numbers))
        made.append((out, [recorder.number(leaf) for leaf in out]))
    found = Induction(parts)
    for i, number in enumerate(recorders[0][1]):
        if number is not None:
            found.kind[number] = rows(0) if i in cut else SAME
    found.follow([recorder.ops for recorder, _ in recorders])
    for i, number in enumerate(made[0][1]):
        yield found.kind.get(number, SAME), [out[i] for out, _ in made]


def on_more_rows(f: Any, leaves: list[Any], spec: Any, cut: tuple[int, ...]) -> list[list[torch.Tensor]]:
    """The three values of each result if each row is there eight times; an error of torch's if they do not fit."""
    many = [leaf.repeat_interleave(MORE, 0) if i in cut else leaf for i, leaf in enumerate(leaves)]
    parts, made = Parts.of(many[cut[0]].shape[0], MORE * (leaves[cut[0]].shape[0] // 2)), []
    for part in range(3):
        given = [parts.cut(leaf, rows(0), part) if i in cut else leaf for i, leaf in enumerate(many)]
        given = [leaf.clone() if torch.is_tensor(leaf) else leaf for leaf in given]
        x, args, kwargs = tree_unflatten(given, spec)
        made.append([leaf for leaf in tree_flatten(f(x, *args, **kwargs))[0] if torch.is_tensor(leaf)])
    return [list(values) for values in zip(*made, strict=True)]


def holds(kind: Kind, values: list[torch.Tensor], parts: Parts) -> bool:
    a, b, c = (value if value.is_complex() else value.double() for value in values)
    match kind.name:
        case "rows":
            return _equal(parts.cut(a, kind, 1), b) and _equal(parts.cut(a, kind, 2), c)
        case "sum":
            return _equal(a, b + c)
        case "mean" | "average":
            whole, first, last = parts.sizes[0]
            return kind.name == "average" or _equal(a * whole, b * first + c * last)
        case "share":
            return _equal(parts.cut(a, kind, 1) * parts.share(1), b)
    return True


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("every", [pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]), 25])
def test_what_the_proof_finds_of_torchs_functions_holds_for_their_values(every: int) -> None:
    wrong, told = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, f, leaves, spec, cut in ways(every):
            whole = leaves[cut[0]].shape[0]
            try:
                found = list(judge(f, leaves, spec, cut))
            except (CannotTry, RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError):
                continue
            told += any(kind.name in ("rows", "sum", "mean", "share") for kind, _ in found)
            parts = Parts.of(whole, whole // 2)
            wrong += [f"{name}: {kind}" for kind, values in found if not holds(kind, values, parts)]
            try:
                more = on_more_rows(f, leaves, spec, cut)
            except (RuntimeError, ValueError, IndexError):
                continue
            larger = Parts.of(MORE * whole, MORE * (whole // 2))
            rows_of = [(kind, values) for (kind, _), values in zip(found, more, strict=False) if kind.is_rows]
            wrong += [f"{name}: {kind} on more rows" for kind, values in rows_of if not holds(kind, values, larger)]
    assert not wrong, f"{len(wrong)} wrong of {told}:\n" + "\n".join(wrong)
    assert told > 500 / every, "too few are followed to show anything"
    print(f"{told} calls were followed")


def _counted(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).sum()


CLASS = torch.tensor([0, 1, 2, 3, 0, 1, 0, 0])  # the same in B and in C, and different in B alone
COMPOSED: dict[str, Any] = {
    "a triangle": lambda x: x.triu(-8),
    "rows rolled by more than there are": lambda x: x.roll(30, 0),
    "a sum and a number": lambda x: x.sum(0) + 1.0,
    "a number less a sum": lambda x: 1.0 - x.sum(0),
    "a count and a number": lambda x: _counted(x) + 1,
    "a mean and a number": lambda x: x.mean(0) + 1.0,
    "half of a sum, rounded": lambda x: torch.div(x.sum(0), 2, rounding_mode="floor"),
    "half of a count": lambda x: _counted(x) // 2,
    "a count's rest": lambda x: _counted(x) % 2,
    "a count, at least 1": lambda x: _counted(x).clamp(min=1),
    "a count, at most 100": lambda x: _counted(x).clamp(max=100),
    "whether there is one": lambda x: _counted(x) > 0,
    "whether there is none": lambda x: _counted(x) == 0,
    "a product of sums": lambda x: x.sum(0) * x.sum(),
    "a square of a mean": lambda x: x.mean(0) ** 2,
    "a sum by a count": lambda x: x.sum() / len(x),
    "twice a sum": lambda x: 2 * x.sum(0) - x.sum(0) / 4,
    "the last of a class": lambda x: torch.zeros(4, 3, dtype=x.dtype).index_put((CLASS[: len(x)],), x),
    "the sum of a class": lambda x: torch.zeros(4, 3, dtype=x.dtype).index_add(0, CLASS[: len(x)], x),
    "every other row": lambda x: x * (torch.arange(len(x)) % 2)[:, None],
    "rows by place": lambda x: x[torch.arange(len(x))],
    "rows by pairs": lambda x: x[torch.arange(len(x)) // 2 * 2],
}
FOLLOWED = {"a mean and a number", "a sum by a count", "twice a sum", "rows by place"}


@pytest.mark.parametrize("name", COMPOSED)
def test_what_the_proof_finds_of_sums_and_counts_holds_for_others(name: str) -> None:
    """Numbers that are unlike those of the trial: none is positive in B, and classes are there twice in A."""
    x = torch.randn(8, 3, dtype=torch.float64)
    x[:4] = -x[:4].abs()
    leaves, spec = tree_flatten((x, (), {}))
    try:
        (kind, values), *_ = judge(COMPOSED[name], leaves, spec, (0,))
    except CannotTry:
        kind, values = Kind("mixed"), [x] * 3
    assert holds(kind, values, Parts.of(8, 4)), kind
    if kind.is_rows:
        assert holds(kind, on_more_rows(COMPOSED[name], leaves, spec, (0,))[0], Parts.of(8 * MORE, 4 * MORE)), kind
    if name in FOLLOWED:
        assert kind.name in ("rows", "sum", "mean", "share"), kind
