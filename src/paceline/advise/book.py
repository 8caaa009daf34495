"""Writes a page about all rules: `docs/advice.md` is this module's output.

python -m paceline.advise.book > docs/advice.md
"""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from types import ModuleType

from paceline.advise.registry import MODULES, RULES, Rule

HEAD = """\
# What the rules say

<!-- Made by: python -m paceline.advise.book > docs/advice.md -->

`paceline profile` reads the record of a run and reports findings: what is wrong, the numbers that show it, the line of
the script if there is one, the mod that fixes it, and the predicted gain. Findings are sorted by gain. The record keeps
them in `findings.json`; `--json` prints them.

    paceline profile train.py             # where the time goes, and what to do about it
    paceline profile --prove train.py     # … and a trial of each mod: predicted beside measured gain
    paceline profile --trace trace.json   # for a trace that torch.profiler wrote elsewhere

A gain is a factor of throughput (samples per second): 1.50× is half as fast again. Each rule computes it from the
traced steps, as described below, with one model of a step on a device. While the script waits for input, or the host
restarts after a wait for the device, nothing else happens. In the rest of a step the host launches kernels while the
device computes, and the slower of the two sets the time. So a faster kernel gains nothing if the host is the slower
one, and the finding says so. The profiler slows down the host; host times are scaled to fit the untraced steps.

A prediction is no promise. `--prove` runs each finding's mod alone, in three rounds of short trials that alternate with
trials of the unchanged script, and adds the measured gain (`measured_gain`; `proof` says what happened). If the rounds
of both overlap, no gain was measured (`tied`). The accuracy of the predictions over the
examples is in `benchmarks/advice.md`.
"""


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for rule, module in zip(RULES, MODULES, strict=True):
        parts.append(_section(rule, module))
    return "\n".join(parts)


def thresholds(module: ModuleType) -> list[tuple[str, str, str]]:
    """The named numbers of a rule's file: name, value, and the reason given in its comment."""
    source = inspect.getsource(module)
    reasons: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            reasons[token.start[0]] = token.string.lstrip("# ")
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        told = re.match(r"([A-Z][A-Z_]+) = ([\d.e+/ -]+?)(\s*#|$)", line)
        if told:
            found.append((told[1], told[2].strip(), reasons.get(number, "")))
    return found


def _section(rule: Rule, module: ModuleType) -> str:
    title = (module.__doc__ or "").strip().splitlines()[0].rstrip(".")
    lines = [f"## {title}", "", f"`{rule.name}`", "", rule.about, ""]
    known = thresholds(module)
    if known:
        lines += ["| number | value | why |", "|---|---|---|"]
        lines += [f"| `{name}` | {value} | {_capital(reason)} |" for name, value, reason in known]
        lines.append("")
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    print(page(), end="")
