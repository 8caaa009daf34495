"""Names for the dimensions of a model's parameters, found by the kinds, names and shapes of its modules.

    nn.Embedding                                     weight  vocab, embed       (of positions: position, embed)
    nn.Linear, query, key or value of an attention   weight  heads, embed       bias  heads
    nn.Linear, query, key and value in one           weight  qkv, embed         bias  qkv      (lies where heads lie)
    nn.Linear, output of an attention                weight  embed, heads       bias  embed
    nn.Linear into a hidden layer                    weight  hidden, embed      bias  hidden
    nn.Linear out of it                              weight  embed, hidden      bias  embed
    nn.Linear to the vocabulary                      weight  vocab, embed       bias  vocab
    any other nn.Linear                              weight  out, embed         bias  out
    convolutions                                     weight  channels, in_channels, height, width
    all others                                       dim0, dim1, …

Two linear layers in a row are a hidden layer if the first one's outputs are the second one's inputs: then the first is
split by its outputs, the second by its inputs, and nothing is exchanged between the two (Megatron). Names change only
what is split, never a result.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from paceline.strategies.mesh.layout import MeshLayout

Names = tuple[str, ...]
APART = {"q", "k", "v", "query", "key", "value", "wq", "wk", "wv", "to_q", "to_k", "to_v", "q_lin", "k_lin", "v_lin"}
APART |= {f"{name}_proj" for name in ("q", "k", "v")}
FUSED = {"qkv", "c_attn", "in_proj", "query_key_value", "Wqkv", "to_qkv", "qkv_proj"}
OUTPUT = {"out", "o", "proj", "o_proj", "out_proj", "c_proj", "wo", "dense", "to_out", "out_lin", "projection"}
HEADS = {"head", "lm_head", "decoder", "to_logits", "output_projection"}
CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SPACE = ("depth", "height", "width")


def names_of(module: nn.Module, layout: MeshLayout) -> Iterator[tuple[str, nn.Parameter, Names]]:
    """Each parameter once, with its name and the names of its dimensions."""
    found = {id(p): dims for p, dims in _ready_made(module)}
    aliases: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    for name, parameter in module.named_parameters():
        generic = tuple(f"dim{number}" for number in range(parameter.dim()))
        yield name, parameter, layout.described(aliases[id(parameter)]) or found.get(id(parameter), generic)


def _ready_made(module: nn.Module) -> Iterator[tuple[torch.Tensor, Names]]:
    """Later names for a parameter replace earlier ones: a tied head has those of the embedding."""
    linears = {name: child for name, child in module.named_modules() if isinstance(child, nn.Linear)}
    words = {child.num_embeddings for child in module.modules() if isinstance(child, nn.Embedding)}
    outputs = dict(_linear_names(linears, words))
    for name, child in linears.items():
        first, second = outputs[name]
        yield from _named(child, weight=(first, second), bias=(first,))
    for name, child in module.named_modules():
        if isinstance(child, CONV):
            space = SPACE[-len(child.kernel_size) :]
            yield from _named(child, weight=("channels", "in_channels", *space), bias=("channels",))
        elif isinstance(child, nn.Embedding) and not (child.sparse or child.max_norm or child.scale_grad_by_freq):
            yield from _named(child, weight=("position" if "pos" in name.lower() else "vocab", "embed"))
        elif isinstance(child, nn.MultiheadAttention) and child._parameters["in_proj_weight"] is not None:
            yield from _named(child, in_proj_weight=("in_proj", "embed"), in_proj_bias=("in_proj",))
            yield from _named(child.out_proj, weight=("embed", "out"))  # torch's function for it gathers its weights


def _named(module: nn.Module, **dims: Names) -> Iterator[tuple[torch.Tensor, Names]]:
    """The module's own parameters. Not by `module.weight`: a parametrization (spectral norm) would be computed, and may
    change its buffers."""
    for name, names in dims.items():
        if (parameter := module._parameters.get(name)) is not None:
            yield parameter, names


def _linear_names(linears: dict[str, nn.Linear], words: set[int]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names of each linear layer's outputs and inputs."""
    named: dict[str, tuple[str, str]] = {}
    parents = {name: name.rpartition(".")[0] for name in linears}
    last = {name: name.rpartition(".")[2] for name in linears}
    for name, child in linears.items():
        if last[name] in APART:
            named[name] = ("heads", "embed")
        elif child.out_features == 3 * child.in_features and (last[name] in FUSED or "att" in name.lower()):
            named[name] = ("qkv", "embed")
    attentions = {parents[name] for name in named}
    for name, child in linears.items():
        if name not in named and parents[name] in attentions and last[name] in OUTPUT:
            named[name] = ("embed", "heads")
        elif name not in named and (last[name] in HEADS or (child.out_features in words and name == list(linears)[-1])):
            named[name] = ("vocab", "embed")
    rest = [name for name in linears if name not in named]
    while rest:
        one = rest.pop(0)
        # Only neighbours: a layer between the two has other inputs.
        following = list(linears)[list(linears).index(one) + 1 :][:1]
        if following and following[0] in rest and linears[one].out_features == linears[following[0]].in_features:
            named[one], named[following[0]] = ("hidden", "embed"), ("embed", "hidden")
            rest.pop(0)
        else:
            named[one] = ("out", "embed")
    yield from named.items()


def bytes_of(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()
