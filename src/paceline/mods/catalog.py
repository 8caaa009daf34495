"""The mods that there are: what each is called, what it takes, and what it promises. Knows nothing of torch, so that
the command line can list and check them.

A mod is a class in a file of its own, that subscribes to seams. Its docstring says what it changes, when it applies,
what it can break, and the lines that keep it by hand.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import UsageError

Numbers = Literal["same", "rounded", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A mod, as people type it: `name`, or `name=value`."""

    name: str
    values: tuple[str, ...]  # that it takes, the default first; none: it takes no value. "N" stands for a number
    summary: str
    numbers: Numbers  # the same as without it, to rounding of its precision, or others
    excludes: tuple[str, ...] = ()  # by name, or only with a value: name=value
    outermost: bool = False  # it wraps what the others do, however they were typed
    innermost: bool = False  # the others wrap what it does
    pattern: str = ""  # of its value, where `values` only shows what it may look like


CATALOG = {
    entry.name: entry
    for entry in (
        Entry(
            name="accumulate",
            values=("N",),
            summary="each step in N micro-batches: less memory, more time",
            numbers="rounded",
            excludes=("cuda_graphs", "compile=reduce-overhead", "compile=max-autotune"),
        ),
        Entry(
            name="batch",
            values=("512", "x4", "x4:linear", "x4:sqrt", "x4:none"),
            pattern=r"([1-9]\d*|x(?!0*\.?0*(:|$))\d+(\.\d+)?)(:(linear|sqrt|none))?",
            summary="training batches of so many samples, or times as many; the learning rate by this rule",
            numbers="other",
        ),
        Entry(
            name="channels_last",
            values=(),
            summary="pictures and convolution weights with the channel as the last dimension in memory",
            numbers="rounded",
        ),
        Entry(
            name="checkpointing",
            values=(),
            summary="repeated blocks are computed again in backward: less memory, more time",
            numbers="same",
            excludes=("cuda_graphs", "compile"),
        ),
        Entry(
            name="compile",
            values=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
            summary="the model compiled by torch.compile, in this mode",
            numbers="rounded",
        ),
        Entry(
            name="cuda_graphs",
            values=(),
            summary="forward, backward and optimizer step each launched as a whole",
            numbers="rounded",
            excludes=("compile=reduce-overhead", "compile=max-autotune", "precision=fp16"),
            outermost=True,
        ),
        Entry(
            name="cudnn_benchmark",
            values=(),
            summary="cuDNN tries its convolution algorithms and keeps the fastest",
            numbers="rounded",
        ),
        Entry(
            name="decay",
            values=("N",),
            summary="the learning rate goes down along a cosine, to nothing at step N",
            numbers="other",
        ),
        Entry(
            name="emulate",
            values=("N",),
            summary="what N workers of the script's batch would compute: N times the batch, batch norms of a worker's",
            numbers="other",
            excludes=("batch",),
        ),
        Entry(
            name="fused_optimizer",
            values=(),
            summary="the optimizer's step in one kernel, where torch has one",
            numbers="rounded",
        ),
        Entry(
            name="ghost_bn",
            values=("N",),
            summary="batch norms see ghosts of N samples, however large the batch; 32 is usual",
            numbers="other",
        ),
        Entry(
            name="large_batch",
            values=("auto", "auto:1000"),
            pattern=r"auto(:[1-9]\d*)?",
            summary="measures gradient noise, then chooses rule, warm-up and optimizer; of so many steps in all",
            numbers="other",
            excludes=("optimizer", "lr_scale", "warmup", "decay", "ghost_bn", "cuda_graphs"),
            innermost=True,
        ),
        Entry(
            name="loader",
            values=("2", "4:8", "fast"),
            pattern=r"[1-9]\d*(:[1-9]\d*)?|fast",
            summary="so many processes that load samples, each so many batches ahead, or as measuring shows",
            numbers="same",
            excludes=("resident",),
        ),
        Entry(
            name="lr_scale",
            values=("8", "8:linear", "8:sqrt"),
            pattern=r"(?!0*\.?0*(:|$))\d+(\.\d+)?(:(linear|sqrt))?",
            summary="the learning rate for a batch that is so many times as large, by this rule",
            numbers="other",
        ),
        Entry(
            name="optimizer",
            values=("lamb", "lars", "lamb:0.02", "lars:5"),
            pattern=r"(lamb|lars)(:(?!0*\.?0*$)\d*\.?\d+(e-?\d+)?)?",
            summary="LAMB or LARS in the place of SGD or Adam; at a rate of its own, or one that fits the script's",
            numbers="other",
            excludes=("cuda_graphs", "fused_optimizer"),
            innermost=True,
        ),
        Entry(
            name="precision",
            values=("bf16", "fp16"),
            summary="the model's forward under autocast; fp16 with scaled gradients",
            numbers="other",
        ),
        Entry(
            name="resident",
            values=(),
            summary="a dataset of tensors on the device, and a batch as one gather",
            numbers="same",
            excludes=("loader",),
        ),
        Entry(
            name="tf32",
            values=(),
            summary="matrix products and convolutions of float32 on tensor cores, inputs rounded to 10 bits",
            numbers="other",
        ),
        Entry(
            name="threads",
            values=("2", "2:bound"),
            pattern=r"[1-9]\d*(:bound)?",
            summary="so many threads for each worker; bound: each to a core of its own",
            numbers="rounded",
        ),
        Entry(
            name="warmup",
            values=("N",),
            summary="the learning rate goes up in a line, over the first N steps",
            numbers="other",
        ),
        Entry(
            name="workers",
            values=("N",),
            summary="on N workers, as -n N",
            numbers="rounded",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A mod and its value, as asked for."""

    entry: Entry
    value: str

    def __str__(self) -> str:
        return f"{self.entry.name}={self.value}" if self.value else self.entry.name


def parse(texts: Sequence[str]) -> list[Asked]:
    """What `--mod` was given, checked: known, of a value that it takes, none twice, none that excludes another."""
    asked = [_parse_one(text) for text in texts]
    names = [one.entry.name for one in asked]
    for one in asked:
        if names.count(one.entry.name) > 1:
            raise UsageError(f"Asked for the mod {one.entry.name} twice.", advice="Give it once.")
        for other in one.entry.excludes:
            if other in names or other in map(str, asked):
                raise UsageError(
                    f"Asked for the mods {one.entry.name} and {other}, which exclude each other.",
                    advice="Leave one of them out.",
                )
    return sorted(asked, key=lambda one: one.entry.outermost - one.entry.innermost)


def _parse_one(text: str) -> Asked:
    name, given, value = text.partition("=")
    entry = CATALOG.get(name)
    if entry is None:
        raise UsageError(f"Asked for --mod {text}, but there is no mod {name!r}.", advice="List them: paceline mods")
    if not entry.values:
        if given:
            raise UsageError(f"Asked for --mod {text}, but {name} takes no value.", advice=f"--mod {name}")
        return Asked(entry, "")
    if entry.pattern:
        if not re.fullmatch(entry.pattern, value):
            known = ", ".join(entry.values)
            raise UsageError(
                f"Asked for --mod {text}, but {name} takes values like {known}.",
                advice=f"--mod {name}={entry.values[0]}",
            )
        return Asked(entry, value)
    value = value if given else entry.values[0]
    if entry.values == ("N",):
        if not value.isdigit() or int(value) < 1:
            raise UsageError(f"Asked for --mod {text}, but {name} takes a number from 1.", advice=f"--mod {name}=2")
    elif value not in entry.values:
        known = ", ".join(entry.values)
        raise UsageError(f"Asked for --mod {text}, but {name} takes {known}.", advice=f"--mod {name}={entry.values[0]}")
    return Asked(entry, value)


def load(asked: Asked) -> Any:
    """The mod itself, in a worker: an object with an `on_stage`."""
    module = importlib.import_module(f"paceline.mods.{asked.entry.name}")
    return module.Mod(asked.value)
