"""The catalog of mods: each mod's name, values, summary and effect on numbers.

This module does not import torch, so that the command line can list and check mods. Each mod is a class `Mod` in a file
of its own that subscribes to seams. The file's docstring says what the mod changes, when it applies, what it can break,
and which lines have the same effect in a script.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import UsageError

Numbers = Literal["same", "rounded", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModEntry:
    """A mod, as users type it: `name`, or `name=value`."""

    name: str
    values: tuple[str, ...]  # accepted values, the default first; empty: no value. "N" stands for any number from 1
    summary: str
    numbers: Numbers  # compared with a run without the mod: the same, equal up to rounding, or different
    excludes: tuple[str, ...] = ()  # mods that cannot be combined: name, or name=value for one value only
    outermost: bool = False  # wraps all other mods, whatever the order on the command line
    innermost: bool = False  # all other mods wrap this one
    pattern: str = ""  # regular expression for the value; `values` then only holds examples


CATALOG = {
    entry.name: entry
    for entry in (
        ModEntry(
            name="accumulate",
            values=("N",),
            summary="compute each step in N micro-batches: less memory, more time",
            numbers="rounded",
            excludes=("cuda_graphs", "compile=reduce-overhead", "compile=max-autotune"),
        ),
        ModEntry(
            name="batch",
            values=("512", "x4", "x4:linear", "x4:sqrt", "x4:none"),
            pattern=r"([1-9]\d*|x(?!0*\.?0*(:|$))\d+(\.\d+)?)(:(linear|sqrt|none))?",
            summary="training batch of 512 samples, or 4× the script's, with the learning rate scaled by a rule",
            numbers="other",
        ),
        ModEntry(
            name="bn",
            values=("local",),
            summary="batch norm over each worker's slice, as under DDP, instead of the whole batch",
            numbers="other",
        ),
        ModEntry(
            name="channels_last",
            values=(),
            summary="images and convolution weights in channels_last memory format",
            numbers="rounded",
        ),
        ModEntry(
            name="checkpointing",
            values=(),
            summary="recompute repeated blocks in backward: less memory, more time",
            numbers="same",
            excludes=("cuda_graphs", "compile"),
        ),
        ModEntry(
            name="compile",
            values=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
            summary="compile the model with torch.compile, in this mode",
            numbers="rounded",
        ),
        ModEntry(
            name="cuda_graphs",
            values=(),
            summary="launch forward, backward and optimizer step as one CUDA graph each",
            numbers="rounded",
            excludes=("compile=reduce-overhead", "compile=max-autotune", "precision=fp16"),
            outermost=True,
        ),
        ModEntry(
            name="cudnn_benchmark",
            values=(),
            summary="cuDNN tries its convolution algorithms and keeps the fastest",
            numbers="rounded",
        ),
        ModEntry(
            name="decay",
            values=("N",),
            summary="cosine decay of the learning rate, to 1 % at step N",
            numbers="other",
        ),
        ModEntry(
            name="emulate",
            values=("N",),
            summary="emulate N workers: N× batch, per-worker batch norm",
            numbers="other",
            excludes=("batch",),
        ),
        ModEntry(
            name="fused_optimizer",
            values=(),
            summary="compute the optimizer's step in one kernel, if torch has a fused version",
            numbers="rounded",
        ),
        ModEntry(
            name="ghost_bn",
            values=("N",),
            summary="ghost batch norm: normalise over groups of N samples, however large the batch; 32 is usual",
            numbers="other",
        ),
        ModEntry(
            name="large_batch",
            values=("auto", "auto:1000"),
            pattern=r"auto(:[1-9]\d*)?",
            summary="measure gradient noise, then choose rule, warm-up and optimizer; auto:1000: for 1000 steps in all",
            numbers="other",
            excludes=("optimizer", "lr_scale", "warmup", "decay", "ghost_bn", "cuda_graphs"),
            innermost=True,
        ),
        ModEntry(
            name="loader",
            values=("2", "4:8", "fast"),
            pattern=r"[1-9]\d*(:[1-9]\d*)?|fast",
            summary="loader processes, and batches that each prefetches; fast: tuned automatically",
            numbers="same",
            excludes=("resident",),
        ),
        ModEntry(
            name="lr_scale",
            values=("8", "8:linear", "8:sqrt"),
            pattern=r"(?!0*\.?0*(:|$))\d+(\.\d+)?(:(linear|sqrt))?",
            summary="scale the learning rate for a batch 8 times as large, by a rule",
            numbers="other",
        ),
        ModEntry(
            name="optimizer",
            values=("lamb", "lars", "lamb:0.02", "lars:5"),
            pattern=r"(lamb|lars)(:(?!0*\.?0*$)\d*\.?\d+(e-?\d+)?)?",
            summary="replace SGD or Adam by LAMB or LARS; with this learning rate, or one derived from the script's",
            numbers="other",
            excludes=("cuda_graphs", "fused_optimizer"),
            innermost=True,
        ),
        ModEntry(
            name="precision",
            values=("bf16", "fp16"),
            summary="run the model's forward under autocast; fp16 with gradient scaling",
            numbers="other",
        ),
        ModEntry(
            name="random",
            values=("own",),
            summary="each worker draws its own random numbers inside the model, for its rows only: faster",
            numbers="other",
        ),
        ModEntry(
            name="resident",
            values=(),
            summary="keep a TensorDataset on the device, and make a batch by one gather",
            numbers="same",
            excludes=("loader",),
        ),
        ModEntry(
            name="tf32",
            values=(),
            summary="float32 matrix products and convolutions on tensor cores, inputs rounded to 10 bits",
            numbers="other",
        ),
        ModEntry(
            name="threads",
            values=("2", "2:bound"),
            pattern=r"[1-9]\d*(:bound)?",
            summary="number of threads per worker; bound: each thread on its own core",
            numbers="rounded",
        ),
        ModEntry(
            name="view",
            values=("slice",),
            summary="the script sees its worker's slice of a training batch, as under DDP, instead of the whole batch",
            numbers="other",
        ),
        ModEntry(
            name="warmup",
            values=("N",),
            summary="linear warm-up of the learning rate over the first N steps",
            numbers="other",
        ),
        ModEntry(
            name="workers",
            values=("N",),
            summary="run on N workers, like -n N",
            numbers="rounded",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class AskedMod:
    """A mod and its value, from the command line."""

    entry: ModEntry
    value: str

    def __str__(self) -> str:
        return f"{self.entry.name}={self.value}" if self.value else self.entry.name


def parse(texts: Sequence[str]) -> list[AskedMod]:
    """The mods of the `--mod` options, innermost first. UsageError for an unknown mod, a wrong value, a mod that is
    given twice, or two mods that exclude each other."""
    asked = [_parse_one(text) for text in texts]
    names = [one.entry.name for one in asked]
    for one in asked:
        if names.count(one.entry.name) > 1:
            raise UsageError(f"--mod {one.entry.name} is given twice.", advice="Give it once.")
        for other in one.entry.excludes:
            if other in names or other in map(str, asked):
                raise UsageError(
                    f"--mod {one.entry.name} and --mod {other} exclude each other.",
                    advice="Leave one of them out.",
                )
    return sorted(asked, key=lambda one: one.entry.outermost - one.entry.innermost)


def _parse_one(text: str) -> AskedMod:
    name, given, value = text.partition("=")
    entry = CATALOG.get(name)
    if entry is None:
        near = near_miss(text)
        advice = f"Did you mean --mod {near}? " if near else ""
        raise UsageError(
            f"--mod {text}: there is no mod {name!r}.", advice=f"{advice}To list all mods, type: paceline mods"
        )
    if not entry.values:
        if given:
            raise UsageError(f"--mod {text}: {name} takes no value.", advice=f"Type: --mod {name}")
        return AskedMod(entry, "")
    if entry.pattern:
        if not re.fullmatch(entry.pattern, value):
            known = ", ".join(entry.values)
            raise UsageError(
                f"--mod {text}: {name} takes values like {known}.",
                advice=f"Type for example: --mod {name}={_nearest(value, entry.values)}",
            )
        return AskedMod(entry, value)
    value = value if given else entry.values[0]
    if entry.values == ("N",):
        if not value.isdigit() or int(value) < 1:
            raise UsageError(
                f"--mod {text}: {name} takes a number from 1 up.", advice=f"Type for example: --mod {name}=2"
            )
    elif value not in entry.values:
        known = ", ".join(entry.values)
        raise UsageError(
            f"--mod {text}: {name} takes {known}.", advice=f"Type: --mod {name}={_nearest(value, entry.values)}"
        )
    return AskedMod(entry, value)


# What the field, or a library, calls a mod.
_OTHER_NAMES = {
    "amp": "precision=bf16",
    "autocast": "precision=bf16",
    "bfloat16": "precision=bf16",
    "mixed_precision": "precision=bf16",
    "float16": "precision=fp16",
    "half": "precision=fp16",
    "batch_size": "batch=512",
    "gradient_accumulation": "accumulate=2",
    "gradient_checkpointing": "checkpointing",
    "activation_checkpointing": "checkpointing",
    "memory_format": "channels_last",
    "num_workers": "loader=2",
    "prefetch": "loader=fast",
    "torch_compile": "compile",
}


def near_miss(text: str) -> str:
    """The mod that was probably meant, as typed after --mod; "" if none is near. `bf16` → `precision=bf16`."""
    name, _, value = text.lower().replace("-", "_").replace(".", "_").partition("=")
    spelled = {
        choice: f"{one.name}={choice}"
        for one in CATALOG.values()
        for choice in one.values
        if choice.isalnum() and choice[0].isalpha() and choice != "N"
    }
    known = spelled | _OTHER_NAMES | {one: one for one in CATALOG}
    near = name if name in known else next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), "")
    meant = known.get(near, "")
    entry = CATALOG.get(meant)
    if entry is None or not entry.values:
        return meant
    if not _takes(entry, value):
        value = "2" if entry.values == ("N",) else _nearest(value, entry.values)
    return f"{meant}={value}"


def complete(incomplete: str) -> list[tuple[str, str]]:
    """What a shell offers for the beginning of a mod: names; where only one is left, with its values."""
    name, given, value = incomplete.partition("=")
    found = [one for one in CATALOG.values() if (one.name == name if given else one.name.startswith(name))]
    if len(found) == 1 and found[0].values:
        [entry] = found
        return [(f"{entry.name}={choice}", entry.summary) for choice in _choices(entry) if choice.startswith(value)]
    return [(f"{one.name}=" if one.values else one.name, one.summary) for one in found]


def _choices(entry: ModEntry) -> tuple[str, ...]:
    return ("2", "4", "8") if entry.values == ("N",) else entry.values


def _takes(entry: ModEntry, value: str) -> bool:
    if entry.values == ("N",):
        return value.isdigit() and int(value) > 0
    return bool(re.fullmatch(entry.pattern, value)) if entry.pattern else value in entry.values


def _nearest(value: str, choices: Sequence[str]) -> str:
    """The accepted value that is most like the typed one; the first if none is."""
    short = value.lower().replace("bfloat", "bf").replace("float", "fp")
    return next(iter(difflib.get_close_matches(short, choices, n=1)), choices[0])


def load(asked: AskedMod) -> Any:
    """Imports the mod in a worker; returns an object with the method `on_stage`."""
    module = importlib.import_module(f"paceline.mods.{asked.entry.name}")
    return module.Mod(asked.value)
