"""Which mods cannot act in a script, from the facts of one run without them.

`tune` asks before it tries a mod, and the advisor before it advises one. Where the facts are silent, a mod may act: it
says itself, in a trial, if it does not. This module does not import torch.
"""

from __future__ import annotations

from paceline.record.facts import Facts

# In the words of the mods' own notices.
NO_LOADER = "the script iterates no DataLoader."
NOT_READ_BY_INDEX = "the script's loaders have processes of their own, or datasets that cannot be read by index."
NO_TENSORS = "no DataLoader of the script has a TensorDataset, torch's collate function and no processes of its own."
NO_CONVOLUTION = "no model of the script has a 2-d convolution."
COMPILED = "the script compiles its models itself."
AUTOCAST = "the script calls its models under autocast itself."
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # optimizers with a fused version
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def no_fused(names: set[str]) -> str:
    return f"there is no fused version of {' and '.join(sorted(names))}."


def why_idle(mod: str, facts: Facts) -> str:
    """Why the mod, as typed, would do nothing; empty if it may act."""
    name, _, value = mod.partition("=")
    loaders, models = facts.loaders, facts.models
    if name in ("loader", "batch", "resident") and not loaders and facts.steps:
        return NO_LOADER if name != "resident" else NO_TENSORS
    if name == "loader" and loaders and not any(one.indexed and not one.processes for one in loaders):
        return NOT_READ_BY_INDEX
    if name == "resident" and loaders and not any(one.tensors and not one.processes for one in loaders):
        return NO_TENSORS
    if name == "channels_last" and models and not any(model.convolutions for model in models):
        return NO_CONVOLUTION
    if name == "compile" and models and all(model.compiled for model in models):
        return COMPILED
    if name == "precision" and facts.called_under and set(facts.called_under) == {DTYPES.get(value)}:
        return AUTOCAST
    optimizers = {one.name for one in facts.optimizers}
    if name == "fused_optimizer" and optimizers and not optimizers & set(FUSED):
        return no_fused(optimizers)
    return ""
