"""What common operations make of kinds. Only for speed: an operation that is not here, or whose arguments are unusual,
is tried (see `probing`), with the same answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.script.proof.kinds import AVERAGE, MAX, MEAN, MIN, MIXED, PLACE, SAME, SUM, Kind, Parts, rows
from paceline.script.proof.recorder import Note, Op, words
from paceline.torch_private import arguments_of, changes_arguments, is_view

# Their rows are entries of dimension 0 in all arguments and results, or (weights, masks) not there.
BATCH_FIRST = words(
    """
    convolution max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    adaptive_max_pool2d adaptive_max_pool2d_backward upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d upsample_nearest1d_backward
    upsample_nearest2d_backward upsample_nearest3d_backward upsample_bilinear2d_backward
    upsample_bicubic2d_backward upsample_linear1d_backward upsample_trilinear3d_backward _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa _upsample_nearest_exact2d native_group_norm im2col col2im grid_sampler_2d
    grid_sampler_3d grid_sampler_2d_backward grid_sampler_3d_backward reflection_pad1d reflection_pad2d
    reflection_pad3d replication_pad1d replication_pad2d replication_pad3d reflection_pad1d_backward
    reflection_pad2d_backward replication_pad1d_backward replication_pad2d_backward pixel_shuffle
    pixel_unshuffle _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable
    _native_multi_head_attention _transformer_encoder_layer_fwd
    _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell
    """
)
ALONG = words(
    """
    sum mean amax amin max min any all prod argmax argmin var std var_mean std_mean logsumexp norm
    linalg_vector_norm cumsum cumprod logcumsumexp cummax cummin sort topk argsort flip _softmax _log_softmax
    _safe_softmax nansum median kthvalue mode nanmedian count_nonzero _softmax_backward_data
    _log_softmax_backward_data aminmax glu glu_backward
    """
)
ATTENTION = "_scaled_dot_product"
EXTREMES = {"any": MAX, "max": MAX, "amax": MAX, "all": MIN, "min": MIN, "amin": MIN}
SAME_AS_GIVEN = ("detach", "alias", "clone", "lift_fresh")
NORMS = words(
    """
    native_batch_norm _native_batch_norm_legit cudnn_batch_norm miopen_batch_norm _batch_norm_with_update
    _batch_norm_with_update_functional batch_norm_with_update
    """
)
NORMS_BACK = frozenset(
    ["native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward", "batch_norm_backward"]
)
INDEXED = words(
    """
    gather scatter scatter_ scatter_add scatter_add_ index_select take_along_dim
    """
)

FLOATS = (torch.float32, torch.float64)
BAGS = ("_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward")

Asked = Callable[[Any], Kind]
Rule = Callable[[Op, Asked, "Results"], "list[Kind] | None"]


class Results:
    """What the shapes of an operation's results say."""

    def __init__(self, parts: Parts, ops: Sequence[Op]) -> None:
        self._parts, self._ops = parts, ops

    def given(self, place: int) -> list[Any]:
        """An argument in A, B and C."""
        return [op.args[place] for op in self._ops]

    def along(self, number: int) -> Kind | None:
        a, b, c = (op.outs[number] for op in self._ops)
        return self._parts.along(a.shape, b.shape, c.shape) if isinstance(a, Note) else SAME

    @property
    def count(self) -> int:
        return len(self._ops[0].outs)

    @property
    def are_last_graphs(self) -> bool:
        """Whether the result is the number of the last graph: the largest in a vector, as each graph has a node."""
        values = [op.outs[0].value for op in self._ops]
        return all(
            value is not None and value.item() == graphs - 1
            for value, graphs in zip(values, self._parts.sizes[0], strict=True)
        )

    def as_rows(self, like: Kind) -> list[Kind] | None:
        """Rows of the same samples, where their shapes say so."""
        found = []
        for number in range(self.count):
            kind = self.along(number)
            if kind is None or (kind.dim is not None and kind.of != like.of):
                return None
            found.append(kind if kind.dim is None else kind._replace(outer=like.outer))
        return found


def judge(op: Op, kind: Asked, results: Results, *, same_numbers: bool) -> list[Kind] | None:
    """The kinds of the results; None if they must be tried. `same_numbers`: arguments that are no tensors are the same
    in A, B and C."""
    if any(kind(note) in (MAX, MIN) for note in _tensors(op)):
        return _of_extremes(op, kind, results) if same_numbers else [MIXED] * results.count
    if op.name in NORMS:
        return _norm(op, kind, results)
    if op.name in NORMS_BACK:
        return _norm_backward(op, kind, results)
    if op.name == "max" and len(op.args) == 1 and kind(op.args[0]).name == "index" and results.are_last_graphs:
        return [PLACE]
    if op.name in RULES:
        return RULES[op.name](op, kind, results)
    if same_numbers:
        if torch.Tag.pointwise in op.func.tags:
            return _pointwise(op, kind, results) or _linear(op, kind)
        if op.name in ALONG:
            return _along(op, kind, results)
        if op.name in INDEXED:
            return _indexed(op, kind, results)
    if op.name in BATCH_FIRST:
        return _batch_first(op, kind, results)
    return None


def _tensors(op: Op) -> list[Note]:
    return [leaf for leaf in op.leaves() if isinstance(leaf, Note)]


def _common(op: Op, kind: Asked) -> Kind | None:
    """The kind that all tensors with rows have; None if they differ, if there is none, or another kind than rows."""
    found = None
    for note in _tensors(op):
        one = kind(note)
        if one.name != "rows" or (found is not None and one.dim is not None and one != found):
            return None
        found = one if one.dim is not None else found
    return found


def _pointwise(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    found: tuple[int, int, int] | None = None
    for note in _tensors(op):
        one = kind(note)
        if one.name != "rows":
            return None
        if one.dim is not None:
            place = (len(note.shape) - one.dim, one.outer, one.of)
            if found not in (None, place):
                return None
            found = place
    if found is None:
        return None
    from_right, outer, of = found
    for note in _tensors(op):
        if kind(note).dim is None and len(note.shape) >= from_right and note.shape[-from_right] != 1:
            return None
    expected = []
    for number, out in enumerate(op.outs):
        want = rows(len(out.shape) - from_right, outer, of)
        if results.along(number) != want._replace(outer=1):
            return None
        expected.append(want)
    return expected


def _linear(op: Op, kind: Asked) -> list[Kind] | None:
    """Sums of sums, and such numbers times what is the same everywhere: gradients of weights that are used twice."""
    kinds = [kind(note) for note in _tensors(op)]
    if any(one.dim is not None or one.name == "place" for one in kinds) or not kinds[0].varies:
        return None
    names = {one.name for one in kinds}
    if len({one.of for one in kinds if one.name in ("share", "mean")}) > 1:  # of nodes, and of edges
        return None
    if op.name in ("add", "add_", "sub", "sub_"):
        if names <= {"sum", "share"} and len(kinds) == 2:  # not with a number, which each part would add
            return [SUM if "sum" in names else kinds[0]]
        return [kinds[0]] if names == {"mean"} else None
    if op.name in ("mul", "mul_", "div", "div_", "neg") and all(one.is_same for one in kinds[1:]):
        return None if op.kwargs.get("rounding_mode") else [kinds[0]]
    return None


def _batch_first(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    common = _common(op, kind)
    if common is None or common.dim != 0:
        return None
    found = results.as_rows(common)
    if found is None or any(one.dim not in (None, 0) for one in found):
        return None
    return found


def _along(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    common = _common(op, kind)
    if common is None or common.dim is None:
        return None
    dims = _dims(op)
    if dims is None:
        return None
    if common.dim not in dims:
        return results.as_rows(common)
    if op.name in ("sum", "nansum", "count_nonzero"):
        return [SUM]
    if op.name == "mean":
        return [MEAN._replace(of=common.of)]
    if op.name in EXTREMES and len(_tensors(op)) == 1:
        return [EXTREMES[op.name], MIXED][: results.count]
    return [MIXED] * results.count


def _of_extremes(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    """Of a maximum or a minimum over the rows, which monotone operations keep or turn round."""
    one, *others = map(kind, _tensors(op))
    is_first = op.args and isinstance(op.args[0], Note) and kind(op.args[0]) == one
    if one not in (MAX, MIN) or not is_first or not all(other.is_same for other in others):
        return [MIXED] * results.count
    if is_view(op.func) and not changes_arguments(op.func):
        return [one]
    if EXTREMES.get(op.name) == one and not others:
        return [one, MIXED][: results.count]
    dtype, out = op.args[0].dtype, op.outs[0].dtype
    is_exact = dtype in (torch.int64, torch.int32)  # of a float that is NaN no comparison is true
    rises = op.name in SAME_AS_GIVEN or (is_exact and op.name in ("gt", "ge", "add", "sub"))
    if rises or (op.name == "_to_copy" and (dtype is torch.bool or (is_exact and out in (torch.int64, *FLOATS)))):
        return [one]
    if (is_exact and op.name in ("lt", "le")) or (dtype is torch.bool and op.name in ("logical_not", "bitwise_not")):
        return [MIN if one == MAX else MAX]
    return [MIXED] * results.count


def _dims(op: Op) -> set[int] | None:
    """The dimensions that the operation names, or all."""
    first = op.args[0]
    for place, argument in enumerate(arguments_of(op.func)):
        if argument.name in ("dim", "dims"):
            value = op.args[place] if place < len(op.args) else op.kwargs.get(argument.name, argument.default_value)
            if value is None or value == []:
                break
            return {dim % max(len(first.shape), 1) for dim in (value if isinstance(value, list) else [value])}
    else:
        if op.name in ("topk", "sort", "argsort", "kthvalue", "glu", "glu_backward"):
            return None
    return set(range(len(first.shape)))


def _indexed(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    """Along another dimension than that of the rows, with an index for each row."""
    common, dim = _common(op, kind), op.args[1]
    if common is None or not isinstance(dim, int) or any(kind(note).dim is None for note in _tensors(op)):
        return None
    if dim % len(op.args[0].shape) == common.dim:
        return None
    return results.as_rows(common)


def _mm(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    return _product(kind(op.args[0]), kind(op.args[1]), 0)


def _addmm(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    bias, added = op.args[0], _product(kind(op.args[1]), kind(op.args[2]), 0)
    if added is None or not added[0].is_rows or not kind(bias).is_same:
        return None
    from_right = 2 - (added[0].dim or 0)
    return added if len(bias.shape) < from_right or bias.shape[-from_right] == 1 else None


def _bmm(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    one, other = kind(op.args[0]), kind(op.args[1])
    if one.is_rows and one == other and one.dim == 0:
        return [one]
    return _product(one, other, 1)


def _product(one: Kind, other: Kind, first: int) -> list[Kind] | None:
    """Of matrices, whose dimensions are `first` and the next one."""
    if one.is_rows and one.dim == first and other.is_same:
        return [one]
    if one.is_same and other.is_rows and other.dim == first + 1:
        return [other]
    if one.is_rows and other.is_rows and (one.dim, other.dim) == (first + 1, first) and one[2:] == other[2:]:
        return [SUM]
    return None


def _convolution_backward(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    back, given, weight = (kind(note) for note in op.args[:3])
    if back.is_rows and back == given and back.dim == 0 and weight.is_same:
        return [given, SUM, SUM]
    return None


def _layer_norm(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    common = _common(op, kind)
    note, shape = op.args[0], op.args[1]
    if common is None or common != kind(note) or (common.dim or 0) >= len(note.shape) - len(shape):
        return None
    return results.as_rows(common)


def _layer_norm_backward(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    common, back, given, shape = _common(op, kind), op.args[0], op.args[1], op.args[2]
    if common is None or not common == kind(back) == kind(given):
        return None
    if (common.dim or 0) >= len(given.shape) - len(shape):
        return None
    return [common, SUM, SUM]


def _group_norm_backward(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    common = _common(op, kind)
    return None if common is None or common.dim != 0 else [common, SUM, SUM]


def _embedding(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    table, index = kind(op.args[0]), kind(op.args[1])
    return [index] if table.is_same and index.is_rows else None


def _embedding_backward(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    back, index, by_frequency = kind(op.args[0]), kind(op.args[1]), op.args[4] if len(op.args) > 4 else False
    return [SUM] if back.is_rows and back == index and not by_frequency else None


def _bags(op: Op, kind: Asked, results: Results) -> list[Kind]:
    """(weight, index, offsets, by frequency, mode, sparse, weights of samples, include the last offset, …): bags of one
    size, as many as rows. Results: bags, the bag of each index, sizes of bags, places of maxima."""
    table, index, others = kind(op.args[0]), kind(op.args[1]), [results.along(number) for number in (2, 3)]
    even = all(_are_even(given, offsets) for given, offsets in zip(results.given(1), results.given(2), strict=True))
    plain = not op.args[3] and all(value in (None, False) for value in op.args[6:8])
    if not (table.is_same and index == rows(0) and even and plain) or None in others:
        return [MIXED] * results.count
    return [index, Kind("index", 0), *(one for one in others if one is not None)]


def _are_even(index: Note, offsets: Note) -> bool:
    count = offsets.shape[0]
    if offsets.value is None or not count or index.shape[0] % count:
        return False
    return offsets.value.tolist() == list(range(0, index.shape[0], index.shape[0] // count))


def _bags_backward(op: Op, kind: Asked, results: Results) -> list[Kind]:
    """(gradient of bags, index, offsets, bag of each index, sizes, maxima, number of weights, by frequency, …)."""
    back, index, bag = (kind(op.args[place]) for place in (0, 1, 3))
    return [SUM if back == index == rows(0) and bag == Kind("index", 0) and not op.args[7] else MIXED]


def _nll_loss(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    scores, target, weight, reduction = kind(op.args[0]), kind(op.args[1]), op.args[2], op.args[3]
    if not scores.is_rows or scores != target or scores.dim != 0 or not (weight is None or kind(weight).is_same):
        return None
    return [scores, SAME] if reduction == 0 else [AVERAGE if reduction == 1 else SUM, SUM]


def _nll_loss_backward(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    back, scores, target, weight, reduction = (*map(kind, op.args[:3]), op.args[3], op.args[4])
    if not scores.is_rows or scores != target or scores.dim != 0 or not (weight is None or kind(weight).is_same):
        return None
    if reduction == 0:
        return [scores] if back == scores else None
    if reduction == 1:  # a share, by the rows or by the targets that count, over this part's own number of targets
        return [scores] if back.name == "share" and back.dim is None else None
    return [scores] if back.is_same else [scores._replace(name="share")] if back == Kind("share") else None


def _norm(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    given = kind(op.args[0])
    training = op.args[5] if isinstance(op.args[5], bool) else None
    if training is None:  # schemas without running statistics
        training = next((value for value in op.args[3:] if isinstance(value, bool)), True)
    if not given.is_rows:
        return [MIXED] * results.count
    if given.dim == 1:  # instance norm: channels of a sample are channels of their own
        return results.as_rows(given)
    if not training:
        return [given, *[SAME] * (results.count - 1)]
    # In a real call F.batch_norm sees the whole batch; what C++ code calls does not.
    return [given, *[SAME] * (results.count - 1)] if op.in_norm else [MIXED] * results.count


def _norm_backward(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    one, other = kind(op.args[0]), kind(op.args[1])
    if not one.is_rows or one != other:
        return [MIXED] * results.count
    return results.as_rows(one) if one.dim == 1 else [one, SUM, SUM, *[SAME] * (results.count - 3)]


def _recurrent(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    """mkldnn_rnn_layer(input (time, rows, features), four weights, states (rows, features), …)."""
    given, states = kind(op.args[0]), [kind(note) for note in op.args[5:7]]
    if given.dim != 1 or not given.is_rows or given.outer != 1 or any(kind(n) != SAME for n in op.args[1:5]):
        return None
    state = given._replace(dim=0)
    return [given, state, state, SAME] if all(one in (state, SAME) for one in states) else None


def _recurrent_backward(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    given = kind(op.args[0])
    if given.dim != 1 or not given.is_rows or given.outer != 1:
        return None
    state = given._replace(dim=0)
    if any(kind(note) not in (given, state, SAME) for note in _tensors(op)):
        return None
    return [given, SUM, SUM, SUM, SUM, state, state]


def _cudnn_rnn(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    """(output, hy, cy, reserve, weights); states are (layers, rows, features)."""
    given = kind(op.args[0])
    if not given.is_rows or given.dim not in (0, 1) or given.outer != 1:
        return None
    state = given._replace(dim=1)
    if any(kind(note) not in (given, state, SAME) for note in _tensors(op)):
        return None
    return [given, state, state, SAME, SAME][: results.count]


def _cudnn_rnn_backward(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    """(input, hx, cx, weights)."""
    given = kind(op.args[0])
    if not given.is_rows or given.dim not in (0, 1) or given.outer != 1:
        return None
    state = given._replace(dim=1)
    if any(kind(note) not in (given, state, SAME) for note in _tensors(op)):
        return None
    return [given, state, state, *[SUM] * (results.count - 3)]


def _sparse(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    """A gradient of an embedding: an entry for each row."""
    index, values = map(kind, [leaf for leaf in op.leaves() if isinstance(leaf, Note)][:2])
    return [SUM] if index.is_rows and values.is_rows and (index.dim, values.dim) == (1, 0) else None


def _as_given(op: Op, kind: Asked, results: Results) -> list[Kind] | None:
    return [kind(op.args[0])]


RULES: dict[str, Rule] = {
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
    "convolution_backward": _convolution_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_rms_norm": _layer_norm,
    "native_group_norm_backward": _group_norm_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(BAGS, _bags),
    "_embedding_bag_backward": _bags_backward,
    "nll_loss_forward": _nll_loss,
    "nll_loss2d_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    "nll_loss2d_backward": _nll_loss_backward,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
    "_cudnn_rnn": _cudnn_rnn,
    "_cudnn_rnn_backward": _cudnn_rnn_backward,
    "_sparse_coo_tensor_unsafe": _sparse,
    "_sparse_coo_tensor_with_dims_and_tensors": _sparse,
    "detach": _as_given,
    "alias": _as_given,
    "clone": _as_given,
    "lift_fresh": _as_given,
    "_lazy_clone": _as_given,
}
