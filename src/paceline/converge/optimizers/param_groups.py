"""Parameter groups: excludes biases, and the gains and shifts of norms, from weight decay and adaptation.

The norm of such a parameter says nothing about a layer's scale (a bias starts at zero, a gain at one), and decay pulls
it away from its useful values.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from paceline.torch_private import BatchOrInstanceNorm

NORMS = (BatchOrInstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def no_decay(model: nn.Module) -> list[dict[str, Any]]:
    """The model's parameters as two groups for an optimizer: weights, and parameters without decay and adaptation.

        optimizer = paceline.LAMB(paceline.no_decay(model), lr=0.01, weight_decay=0.01)

    The second group holds every parameter of a norm, every bias, and all parameters with fewer than two dimensions. The
    groups also work for an optimizer without adaptation (AdamW). An empty group is left out.
    """
    of_norms = {id(p) for module in model.modules() if isinstance(module, NORMS) for p in module.parameters(False)}
    weights: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_bias = "bias" in name.rpartition(".")[2].split("_")
        exempt = parameter.dim() < 2 or id(parameter) in of_norms or is_bias
        (others if exempt else weights).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": weights, "adapt": True},
        {"params": others, "adapt": False, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
