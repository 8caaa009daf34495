"""Random numbers of compiled models, for own rows.

Inductor makes a random number of a seed and a place in the tensor. Where it has replaced torch's random functions by
its own, each of these is replaced once more, by one that is told where own rows begin in the whole batch: `where`, a
tensor that is read while the compiled code runs, so that one graph serves all batches. Attention whose dropout is drawn
inside its kernel is replaced by the same kernel, told the same (see `attention`). What these two do not cover is
reported (`Draws.missed`), and the call is then not computed in slices.

    rows_now(device, k)                     where: the first own row and the number of rows of the batch, for k draws;
                                            0 in a graph made where rows were not known
    random_rows, randint_rows(…, where, …)  inductor's random numbers, at the places of own rows
    attention_rows_…(where, …)              attention, with the dropout of own rows
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from paceline.imports import after_import
from paceline.script.draws import attention
from paceline.script.draws.rows import Draws, Position
from paceline.torch_private import Inductor, arguments_of, compiles_anew, no_dispatch_modes, schema_of

LIBRARY = "paceline"
SEEDED = torch.Tag.nondeterministic_seeded
OURS = ("rows_now", "random_rows", "randint_rows")
_draws: Draws | None = None  # of this worker, while the seams are in place
_installed = False


def find(draws: Draws) -> Callable[[], None]:
    """From now on compiled code draws for own rows. Returns a function that ends it."""
    global _draws
    _draws = draws
    after_import(Inductor.LAST, lambda module: _install())

    def undo() -> None:
        global _draws
        _draws = None

    return undo


def _install() -> None:
    """Once in a process: what torch.compile knows cannot be taken back."""
    global _installed
    if _installed:
        return
    _installed = True
    _define_operations()  # inductor's cache knows them by name: what computes otherwise needs another name
    compiles_anew()  # each graph is to be seen here; what inductor makes of it may come from its cache
    plain = Inductor.joint_graph().replace_random_passes

    @functools.wraps(plain)
    def replace_random_passes(graph: torch.fx.GraphModule) -> int:
        return plain(graph) + (_place_draws(graph.graph) if _draws is not None else 0)

    Inductor.joint_graph().replace_random_passes = replace_random_passes
    if seeding := Inductor.seeds_streams():
        module, name = seeding
        seeds = getattr(module, name)

        @functools.wraps(seeds)
        def seeds_as_it_is(*args: Any, **kwargs: Any) -> Any:
            if _draws is None:
                return seeds(*args, **kwargs)
            with _draws.at(False, Position()):  # one seed for all rows: no draw of the script
                return seeds(*args, **kwargs)

        setattr(module, name, seeds_as_it_is)


# -- the graph ---------------------------------------------------------------------------------------------------------


def _place_draws(graph: Any) -> int:
    """Gives each draw of the graph the place of own rows; returns how many were replaced. In a graph that is made
    outside of a sliced call it is not known, so that a sliced call that runs this graph later is told."""
    assert _draws is not None
    if (own := _draws.own_rows) is None and not _draws.may_be_split():
        return 0
    prims, operations = Inductor.prims(), getattr(torch.ops, LIBRARY)
    here: list[tuple[Any, Any, list[Any]]] = []  # node, what replaces it, and its own arguments
    for node in graph.nodes:
        of_inductor = node.target in (prims.random, prims.randint)
        if node.op != "call_function" or not (of_inductor or SEEDED in getattr(node.target, "tags", ())):
            continue
        if node.target in (prims.seed, prims.seeds) or _draws_nothing(node):
            continue
        if node.target is prims.random and not node.kwargs:
            size, target = node.args[0], operations.random_rows.default
        elif node.target is prims.randint:
            size, target = node.args[2], operations.randint_rows.default
        elif (target := _attention_of(node)) is not None:
            size = node.args[0].meta["val"].shape
        else:
            _draws.missed = f"torch.compile draws random numbers by {node.target}, which cannot be split"
            continue
        if own is None:
            here.append((node, target, [0, 0]))
            continue
        sizes = [_hint(one) for one in size]
        rule = _draws.rule_by_shape(sizes)
        if rule is None or (rule.dim and not of_inductor):
            _draws.missed = "torch.compile draws random numbers of which the rows are not known"
            continue
        many = 0 if rule.dim is None else sizes[rule.dim] // own
        here.append((node, target, [rule.dim or 0, many]))
    for device in {_device_of(node, target) for node, target, _ in here}:
        _prepare(device)
        at_device = [one for one in here if _device_of(*one[:2]) == device]
        with graph.inserting_before(at_device[0][0]):
            where = graph.call_function(operations.rows_now.default, (device, 0 if own is None else len(at_device)))
        where.meta["val"] = _fake(at_device[0][0], (2,), torch.int64, device)
        for node, target, place in at_device:
            with graph.inserting_before(node):
                given, named = _positional(node)
                made = graph.call_function(target, (*given, where, *place), named)
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
            for user in (later for part in made.users for later in part.users):
                if user.target in attention.BACKWARD and Inductor.makes_cuda_graphs():
                    user.target = getattr(operations, _name_of(user.target)).default
    return len(here)


def _draws_nothing(node: Any) -> bool:
    """Attention without dropout, and the backward of attention, which has the numbers of its forward."""
    at = _place_of_dropout(node.target)
    if at is None:
        return False
    return (
        node.target.overloadpacket.__name__.endswith("_backward")
        or (node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)) == 0.0
    )


def _place_of_dropout(kernel: Any) -> int | None:
    names = [argument.name for argument in arguments_of(kernel)] if hasattr(kernel, "overloadpacket") else []
    return names.index("dropout_p") if "dropout_p" in names else None


def _attention_of(node: Any) -> Any:
    """What takes the place of a fused attention kernel; None for another operation."""
    if node.target not in attention.KERNELS:
        return None
    return getattr(getattr(torch.ops, LIBRARY), _name_of(node.target)).default


def _positional(node: Any) -> tuple[list[Any], dict[str, Any]]:
    """All positional arguments, also those that a call names or leaves out; and the others."""
    arguments, named = arguments_of(node.target), dict(node.kwargs)
    rest = [a for a in arguments[len(node.args) :] if not a.kwarg_only]
    return [*node.args, *(named.pop(a.name, a.default_value) for a in rest)], named


def _device_of(node: Any, target: Any) -> torch.device:
    """Where `where` is read: by the kernel of a draw, or on the host, where attention is called."""
    if target in (torch.ops.paceline.random_rows.default, torch.ops.paceline.randint_rows.default):
        found: torch.device = node.meta["val"].device
        return found
    return torch.device("cpu")


def _hint(size: Any) -> int:
    size = size.meta["val"] if isinstance(size, torch.fx.Node) else size
    return size if isinstance(size, int) else int(size.node.hint)


def _fake(like: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
    value = like.meta["val"]
    value = value[0] if isinstance(value, (tuple, list)) else value
    with value.fake_mode:
        return torch.empty(shape, dtype=dtype, device=device)


# -- operations --------------------------------------------------------------------------------------------------------

_where: dict[torch.device, torch.Tensor] = {}  # on each device, what compiled code reads, also inside a CUDA graph
_told: dict[torch.device, tuple[int, int]] = {}  # what was written there last
_now = (0, 0)


def tell_devices(start: int, batch: int) -> None:
    """Before a compiled call: where own rows begin, and how many rows the batch has. Zeros: all rows are there."""
    global _now
    _now = start, batch
    for device, held in _where.items():
        if _told.get(device) != (start, batch):
            _told[device] = start, batch
            held.copy_(torch.tensor([start, batch], device="cpu"))


def _rows_now(device: torch.device, count: int) -> torch.Tensor:
    assert _draws is not None
    _draws.met += count
    if not count and _draws.own_rows is not None:
        _draws.missed = "its compiled code draws random numbers, and was made before it was computed in slices"
    return _where[device].clone()


def _prepare(device: torch.device) -> None:
    """Makes the tensor that compiled code reads, before a CUDA graph takes the memory of what it makes for its own."""
    if device not in _where:
        with no_dispatch_modes():
            _where[device] = torch.zeros(2, dtype=torch.int64, device=device)
            tell_devices(*_now)


def _define_operations() -> None:
    library = torch.library.Library(LIBRARY, "FRAGMENT")
    _libraries.append(library)
    at = "Tensor where, int dim, int many"
    library.define("rows_now(Device device, int count) -> Tensor")
    library.define(f"random_rows(SymInt[] size, Tensor seed, str mode, {at}) -> Tensor")
    library.define(f"randint_rows(SymInt low, SymInt high, SymInt[] size, Tensor seed, {at}) -> Tensor")
    library.impl("rows_now", _rows_now, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"{LIBRARY}::rows_now", lambda device, count: torch.empty(2, dtype=torch.int64, device=device), lib=library
    )
    torch.library.register_fake(
        f"{LIBRARY}::random_rows",
        lambda size, seed, mode, where, dim, many: torch.empty(size, dtype=torch.float32, device=seed.device),
        lib=library,
    )
    torch.library.register_fake(
        f"{LIBRARY}::randint_rows",
        lambda low, high, size, seed, where, dim, many: torch.empty(size, dtype=torch.int64, device=seed.device),
        lib=library,
    )
    for kernel in attention.KERNELS:
        _define_attention(library, kernel)
    for kernel in attention.BACKWARD:
        _define_backward(library, kernel)
    Inductor.register_lowering(torch.ops.paceline.random_rows.default, _lower_random)
    Inductor.register_lowering(torch.ops.paceline.randint_rows.default, _lower_randint)


_libraries: list[Any] = []  # what they define is there as long as they are


def _name_of(kernel: Any) -> str:
    return "attention_rows" + str(kernel.overloadpacket.__name__)


def _define_attention(library: Any, kernel: Any) -> None:
    """The kernel, with `where`, `dim` and `many` after its positional arguments."""
    name, schema = _name_of(kernel), schema_of(kernel)
    given, _, rest = schema[schema.index("(") + 1 :].partition(", *")
    given = given.replace("=0.", "").replace("=False", "")
    library.define(
        f"{name}({given}, Tensor where, int dim, int many, *{rest}",
        tags=(SEEDED, torch.Tag.cudagraph_unsafe, torch.Tag.needs_fixed_stride_order),
    )
    count = sum(not argument.kwarg_only for argument in arguments_of(kernel))  # positional ones
    dropout = _place_of_dropout(kernel)
    assert dropout is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        (start, batch), many = args[count].tolist(), args[count + 2]
        batch = batch * many or len(args[0])
        p = args[dropout]
        given = [one for place, one in enumerate(args[:count]) if place != dropout]

        def plain(*given_and_p: Any) -> Any:
            *given, p = given_and_p
            return kernel(*given[:dropout], p, *given[dropout:], **kwargs)

        settings = tuple(one for one in given if not isinstance(one, torch.Tensor))
        steps = attention.steps_of((kernel, settings, *kwargs.values()), plain, given)
        if steps is None or steps == attention.MATH:
            if _draws is not None:
                _draws.missed = f"the place of the random numbers of {kernel} is not known"
            return plain(*given, p)
        made, later = attention.of_rows(lambda *given: plain(*given, p), given, steps, start * many, batch)
        return (*made[:-1], made[-1] + later) if later else made

    library.impl(name, call, "CUDA")
    torch.library.register_fake(
        f"{LIBRARY}::{name}", lambda *args, **kwargs: kernel(*args[:count], **kwargs), lib=library
    )


def _define_backward(library: Any, kernel: Any) -> None:
    """The kernel itself, outside of CUDA graphs as its forward: outside of them the place of the random numbers lies on
    the host, and a kernel in a CUDA graph would read it on the device."""
    name, schema = _name_of(kernel), schema_of(kernel)
    library.define(
        name + schema[schema.index("(") :], tags=(torch.Tag.cudagraph_unsafe, torch.Tag.needs_fixed_stride_order)
    )
    library.impl(name, kernel, "CUDA")
    torch.library.register_fake(f"{LIBRARY}::{name}", kernel, lib=library)


# -- kernels -----------------------------------------------------------------------------------------------------------


def _lower_random(size: Any, seed: Any, mode: str, where: Any, dim: int, many: int) -> Any:
    ops = Inductor.ops()
    return _pointwise(size, seed, where, dim, many, torch.float32, lambda seed, at: getattr(ops, mode)(seed, at))


def _lower_randint(low: Any, high: Any, size: Any, seed: Any, where: Any, dim: int, many: int) -> Any:
    ops = Inductor.ops()
    least, most = (lambda: ops.index_expr(low, torch.int64)), (lambda: ops.index_expr(high, torch.int64))
    return _pointwise(
        size, seed, where, dim, many, torch.int64, lambda seed, at: ops.randint64(seed, at, least(), most())
    )


def _pointwise(
    size: Any, seed: Any, where: Any, dim: int, many: int, dtype: torch.dtype, draw: Callable[[Any, Any], Any]
) -> Any:
    """A tensor of own rows, each number drawn at its place in the whole batch's tensor, in 32 bits as inductor does.
    Rows lie along `dim`, `many` for each sample; none if `many` is 0."""
    ops, size = Inductor.ops(), [*size]
    seeds, rows = seed.make_loader(), where.make_loader()
    within = math.prod(size[dim + 1 :], start=Inductor.integer(1))

    def number(expression: Any) -> Any:
        return ops.index_expr(expression, torch.int32)

    def of(index: Any) -> Any:
        before = inner = Inductor.integer(0)
        for at, one in zip(index[:dim], size[:dim], strict=True):
            before = before * one + at
        for at, one in zip(index[dim + 1 :], size[dim + 1 :], strict=True):
            inner = inner * one + at
        if not many:
            return draw(seeds([]), number((before * size[dim] + index[dim]) * within + inner if size else before))
        start = ops.to_dtype(rows([Inductor.integer(0)]), torch.int32)
        place = ops.add(number(index[dim] * within + inner), ops.mul(start, number(many * within)))
        if dim:
            batch = ops.to_dtype(rows([Inductor.integer(1)]), torch.int32)
            length = ops.where(ops.eq(batch, number(0)), number(size[dim]), ops.mul(batch, number(many)))
            place = ops.add(place, ops.mul(ops.mul(number(before), length), number(within)))
        return draw(seeds([]), place)

    return Inductor.pointwise(seed.get_device_or_error(), dtype, of, size)
