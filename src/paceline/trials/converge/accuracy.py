"""Finds the accuracy in a script's printed output, or in the numbers that the script logs. Runs nothing.

Without --metric these formats are found; the words before a value tell test accuracy from training accuracy:

    acc: 0.71    val_acc=0.71    test accuracy 0.712    accuracy 71.2 %    Accuracy: 9913/10000 (99%)    Acc@1 71.20
    Accuracy of the network on the 10000 test images: 55 %
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.errors import UsageError
from paceline.record.logged import Logged

Of = Literal["test", "unsaid", "train"]  # in the order of preference

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf"
_NAME = r"(?<![a-z])(?:acc@1(?!\d)|acc(?:uracy|\.)?(?!@)|top-?1)(?![a-z])"
_VALUE = rf"(?P<value>{_NUMBER})(?:\s*/\s*(?P<of>\d+))?\s*(?P<percent>%)?"
# _NEAR: the value directly follows the name. _FAR: other words come between, then a colon or an equals sign.
_NEAR = re.compile(rf"{_NAME}[\s:=(@~'\"\]\)-]{{0,12}}(?:is\s+|of\s+)?{_VALUE}", re.IGNORECASE)
_FAR = re.compile(rf"{_NAME}[^:=\n]*[:=]\s*{_VALUE}", re.IGNORECASE)
_TEST = re.compile(r"(?<![a-z])(?:test|val|valid|validation|eval|evaluation|held.?out|dev)(?![a-z])", re.IGNORECASE)
_TRAIN = re.compile(r"(?<![a-z])train(?:ing)?(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reading:
    """One accuracy from 0 to 1; NaN if the script printed NaN."""

    value: float
    seconds: float | None = None  # since the start of the run; None: unknown


def compile_metric(text: str) -> re.Pattern[str]:
    """The user's pattern. The accuracy is its first group or, without groups, the first number in the match."""
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--metric {text!r} is not a regular expression: {error}.",
            advice=r"Type it like this: --metric 'top1 ([\d.]+)'",
        ) from None


def find(lines: Iterable[tuple[str, float | None]], metric: re.Pattern[str] | None) -> list[Reading]:
    """All accuracies of one kind, in order: test accuracies if there are any, else those of unknown kind, else training
    accuracies. `lines` holds each line with the seconds at which it was printed."""
    found: dict[Of, list[tuple[float, bool, float | None]]] = {"test": [], "unsaid": [], "train": []}
    for line, at in lines:
        for of, value, sure in _by_pattern(line, metric) if metric else _by_name(line):
            found[of].append((value, sure, at))
    chosen = next((found[of] for of in ("test", "unsaid", "train") if found[of]), [])
    # A value above 1 without a percent sign (71.2) is a percentage; then all values are, also a 0.9 of an early epoch.
    hundred = any(not sure and value > 1.0 for value, sure, _ in chosen)
    return [Reading(value / 100 if hundred and not sure else value, at) for value, sure, at in chosen]


def find_logged(logged: Sequence[Logged], began: float) -> list[Reading]:
    """The accuracies that the script passed to `paceline.log`: test accuracies if there are any."""
    for names in (("test_accuracy", "val_accuracy", "test_acc", "val_acc"), ("accuracy", "acc"), ("train_accuracy",)):
        lines = [(line.numbers[name], line.at) for line in logged for name in names if name in line.numbers]
        if lines:
            values = [(math.nan if value is None else value, at - began) for value, at in lines]
            hundred = any(value > 1.0 for value, _ in values)
            return [Reading(value / 100 if hundred else value, at) for value, at in values]
    return []


def _by_pattern(line: str, metric: re.Pattern[str]) -> Iterable[tuple[Of, float, bool]]:
    for match in metric.finditer(line):
        text = match[1] if metric.groups and match[1] is not None else match[0]
        number = re.search(_NUMBER, text, re.IGNORECASE)
        if number:
            behind = text[number.end() :] + line[match.end() :]
            percent = behind.lstrip().startswith("%")
            yield "test", float(number[0]) / (100 if percent else 1), percent


def _by_name(line: str) -> Iterable[tuple[Of, float, bool]]:
    matches = list(_NEAR.finditer(line)) or list(_FAR.finditer(line))
    end = 0
    for match in matches:
        before = line[end : match.start("value")]
        end = match.end()
        of: Of = "test" if _TEST.search(before) else "train" if _TRAIN.search(before) else "unsaid"
        value = float(match["value"])
        if match["of"]:
            whole = int(match["of"])
            yield of, value / whole if whole else math.nan, True
        else:
            yield of, value / 100 if match["percent"] else value, bool(match["percent"])
