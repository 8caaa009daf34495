"""Layers on sharded tensors: the matrix products of Megatron, a vocabulary in parts, dropout, attention by heads.

    linear, weight split by output    local product                          → split along the last dimension
    linear of query, key and value    local product of the own heads' rows   → each worker has some heads
    linear, weight split by input     local product of the input's own part  → one all-reduce → plain, then the bias
    embedding, split by words         own words, zeros for the others        → one all-reduce → plain
                                      (both: own tokens only, if the layout has tokens:model)
    layer norm, RMS norm              local, unless a normalised dimension is split
    embedding, split by width         local                                  → split along the last dimension
    dropout                           the mask that one process would draw for the whole tensor, own part
    attention, split by heads         local

In half precision, products in parts are summed in float32 and rounded once (`half_products`).
A function returns NotImplemented where it does not know better than to gather.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from paceline.spread.dtensors import (
    is_sharded,
    laid,
    linear_of_parts,
    local_of,
    own_part,
    own_use,
    scattered,
    shard_dim,
    split_like,
    summed,
)
from paceline.strategies.mesh import half_products
from paceline.strategies.mesh.fused_heads import THIRDS, FusedHeads
from paceline.strategies.mesh.half_products import half_type
from paceline.strategies.mesh.sharded_parameter import own_heads, sharded, whole
from paceline.strategies.mesh.shown_names import name_of
from paceline.torch_private import bindings, nn_bindings, plain_dropout, plain_dropout_


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if not is_sharded(weight) or weight.dim() != 2:
        return NotImplemented
    w = sharded(weight)
    mesh, dim = w.device_mesh, shard_dim(w)
    if dim == 0 and getattr(weight, "fused", False) and (bias is None or getattr(bias, "fused", False)):
        rows, own_bias = own_heads(weight, mesh), None if bias is None else own_heads(bias, mesh)
        thirds = _by_output(x, rows, own_bias, mesh).unflatten(-1, (THIRDS, -1))
        return FusedHeads(laid(thirds, -1, mesh))
    if dim == 0:
        if is_sharded(bias) and shard_dim(bias) != 0:
            return NotImplemented
        own_bias = None if bias is None else _own(bias, 0, mesh)
        found: Any = laid(_by_output(x, local_of(w), own_bias, mesh), -1, mesh)
        found.is_logits = getattr(weight, "vocab", False)
        return found
    if dim != 1:
        return NotImplemented
    own_x = local_of(x) if is_sharded(x) and shard_dim(x) == x.dim() - 1 else own_part(whole(x), x.dim() - 1, mesh)
    tokens = _has_tokens(weight, x.dim(), x.shape[1] if x.dim() > 1 else 0, mesh)
    return _by_input(own_x, local_of(w), None if bias is None else whole(bias), mesh, tokens=tokens)


def _has_tokens(weight: Any, dims: int, tokens: int, mesh: Any) -> bool:
    """Whether a layer's output (batch, tokens, width) is split along its tokens (sequence parallelism)."""
    return bool(getattr(weight, "tokens", False) and dims == 3 and tokens and tokens % mesh.size() == 0)


def _by_output(x: Any, w: torch.Tensor, bias: torch.Tensor | None, mesh: Any) -> torch.Tensor:
    """This worker's outputs of a linear layer, from the whole input, or from one of which each worker has tokens."""
    half = half_type(x)
    if half is None and is_sharded(x) and x.dim() == 3 and shard_dim(x) == 1:
        return linear_of_parts(local_of(sharded(x)), w, bias, 1, mesh)
    x = whole(x)
    if half is None:
        return F.linear(own_use(x, mesh), w, bias)
    name = _shown_name(x.dim(), bias is not None)
    return half_products.by_output(x.to(half), w.to(half), None if bias is None else bias.to(half), mesh, name)


def _by_input(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, mesh: Any, *, tokens: bool) -> torch.Tensor:
    """The whole output of a linear layer, from this worker's part of the input. `tokens`: split along its tokens."""
    half, name = half_type(x), _shown_name(x.dim(), bias is not None)
    if tokens:
        part = F.linear(x, w) if half is None else half_products.wide(x.to(half), w.to(half))
        plus = bias if bias is None or half is None else bias.to(half)
        return laid(scattered(part, 1, mesh, plus=plus, dtype=half), 1, mesh)
    if half is None:
        return summed(F.linear(x, w), mesh, plus=bias, name=name)
    part = half_products.wide(x.to(half), w.to(half))
    return summed(part, mesh, plus=None if bias is None else bias.to(half), dtype=half, name=name)


@cache
def _shown_name(dims: int, has_bias: bool) -> str:
    """The name of the gradient function of a linear layer's output."""

    def probe() -> torch.Tensor:
        x = torch.zeros((1,) * dims, device="cpu", requires_grad=True)
        found: torch.Tensor = nn_bindings.linear(
            x, torch.zeros((1, 1), device="cpu"), torch.zeros(1, device="cpu") if has_bias else None
        )
        return found

    return name_of(probe)


def _own(tensor: Any, dim: int, mesh: Any) -> torch.Tensor:
    """This worker's part of a tensor, plain or sharded."""
    if is_sharded(tensor):
        return local_of(sharded(tensor))
    return own_part(tensor, dim, mesh)


def embedding(
    ids: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not is_sharded(weight) or is_sharded(ids) or max_norm is not None or scale_grad_by_freq or sparse:
        return NotImplemented
    w = sharded(weight)
    mesh, local = w.device_mesh, local_of(w)
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    if shard_dim(w) == 1:
        return laid(F.embedding(ids, local, padding_idx), -1, mesh)
    if shard_dim(w) != 0:
        return NotImplemented
    _refuse_outside(ids, weight.shape[0])
    first = mesh.get_local_rank() * local.shape[0]
    own = ids - first
    mine = (own >= 0) & (own < local.shape[0])
    padding = None if padding_idx is None or not 0 <= padding_idx - first < local.shape[0] else padding_idx - first
    rows = F.embedding(torch.where(mine, own, 0), local, padding)
    found = torch.where(mine.unsqueeze(-1), rows, 0.0)
    if _has_tokens(weight, found.dim(), ids.shape[1] if ids.dim() == 2 else 0, mesh):
        return laid(scattered(found, 1, mesh), 1, mesh)
    return summed(found, mesh, name="EmbeddingBackward0")


def layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    def compute(x: torch.Tensor, w: Any, b: Any) -> torch.Tensor:
        return F.layer_norm(x, normalized_shape, w, b, eps)

    return _normed(compute, x, normalized_shape, weight, bias)


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return _normed(lambda x, w, b: F.rms_norm(x, normalized_shape, w, eps), x, normalized_shape, weight, None)


def _normed(compute: Callable[..., torch.Tensor], x: Any, shape: Any, weight: Any, bias: Any) -> Any:
    """Each worker normalises its own rows or tokens; the gradients of weight and bias are summed over the workers."""
    if not is_sharded(x):
        return NotImplemented
    mesh, dim = sharded(x).device_mesh, shard_dim(x)
    if dim is None or dim >= x.dim() - len(shape):
        return NotImplemented
    w, b = (None if one is None else own_use(whole(one), mesh) for one in (weight, bias))
    return laid(compute(local_of(sharded(x)), w, b), dim, mesh)


def _refuse_outside(ids: torch.Tensor, words: int) -> None:
    if ids.device.type == "cpu" and ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < words):
        raise IndexError("index out of range in self")  # as torch's


def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """F.dropout: torch's binding, which may be patched to draw the numbers of one process (`script.draws`)."""
    return (bindings.dropout_ if inplace else bindings.dropout)(x, p, training)


def bound_dropout(x: Any, p: float, train: bool) -> Any:
    return x * _noise(x, p) if train and p > 0 else x


def bound_dropout_(x: Any, p: float, train: bool) -> Any:
    return x.mul_(_noise(x, p)) if train and p > 0 else x


@torch.no_grad()
def _noise(x: DTensor, p: float) -> torch.Tensor:
    """What dropout multiplies the tensor by, drawn for the whole tensor in the order of its memory: own part."""
    order = sorted(range(x.dim()), key=x.stride().__getitem__, reverse=True)
    ones = torch.empty_permuted(tuple(x.shape), order, dtype=x.dtype, device=x.device).fill_(1)
    noise: torch.Tensor = plain_dropout(ones, p, True)
    return split_like(noise, sharded(x)) if shard_dim(x) is not None else noise


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention of which each worker has some heads: no word from the others is needed."""
    given = (query, key, value)
    heads = query.dim() - 3
    if heads < 0 or dropout_p or enable_gqa or not all(is_sharded(x) and shard_dim(x) == heads for x in given):
        return NotImplemented
    mesh = sharded(query).device_mesh
    if attn_mask is not None:
        if is_sharded(attn_mask) or (attn_mask.dim() > 2 and attn_mask.shape[-3] != 1):
            return NotImplemented
        attn_mask = own_use(attn_mask, mesh)
    q, k, v = (local_of(sharded(x)) for x in given)
    found = nn_bindings.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, scale=scale)
    return laid(found, heads, mesh)


KNOWN: dict[Any, Callable[..., Any]] = {
    nn_bindings.linear: linear,
    F.embedding: embedding,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.dropout: dropout,
    plain_dropout: bound_dropout,
    plain_dropout_: bound_dropout_,
    nn_bindings.scaled_dot_product_attention: attention,
}
