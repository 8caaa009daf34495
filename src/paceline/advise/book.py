"""All rules as a page for people: `docs/advice.md` is this module's output.

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

`paceline profile` reads what a run left behind and says what is wrong with it: what was found, the numbers that show
it, the line of the script where there is one, the mod that mends it, and the gain to expect. Most gain comes first. The
record keeps it in `findings.json`; `--json` prints it.

    paceline profile train.py             # where the time goes, and what to do about it
    paceline profile --prove train.py     # … and each mod as a trial: predicted beside measured
    paceline profile --trace trace.json   # of a trace that torch.profiler wrote elsewhere

A gain is a factor of samples a second: 1.50× is half as fast again. It is computed from the traced steps, as each rule
says below, by one model of a step with a device: while the script waits for input, or the host begins anew after it has
waited for the device, nothing else happens; in the rest the host launches while the device computes, and the slower of
the two decides. So a faster kernel gains nothing where the host is late, and a finding says so. The profiler makes the
host slower; its times are scaled until they fit the steps that were not traced.

A prediction is no promise. `--prove` runs each finding's mod on its own, in short trials between trials of the script
as it is, and puts what it measured beside it (`measured_gain`; `proof` says what happened). How good the predictions
are over the examples is in `benchmarks/advice.md`.
"""


def page() -> str:
    """The whole of it."""
    parts = [HEAD]
    for rule, module in zip(RULES, MODULES, strict=True):
        parts.append(_section(rule, module))
    return "\n".join(parts)


def thresholds(module: ModuleType) -> list[tuple[str, str, str]]:
    """The named numbers of a rule's file: name, value, and the reason in its comment."""
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
