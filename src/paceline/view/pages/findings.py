"""What the rules said of a run, each with the page that shows its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.view.blocks import Finding
from paceline.view.opened import Opened
from paceline.view.pages.runs import href
from paceline.view.wording import number

MOST = 200
# What a rule's name speaks of, and the page that has the numbers; the first that fits. Rules may name a page.
EVIDENCE = (
    (("input", "loader", "decode", "pin"), "iterations"),
    (("rank", "imbalance", "straggler"), "ranks"),
    (("communication", "bucket", "gloo", "topology", "nvlink"), "timeline"),
    (("sync", "item", "wait", "copy", "copies", "pageable"), "waits"),
    (("kernel", "launch", "graph"), "kernels"),
    (("precision", "tensor", "tf32", "channels", "cudnn", "attention", "conv"), "ops"),
    (("vary", "varies", "iteration", "evaluation", "validation", "checkpoint", "stall"), "iterations"),
    (("memory", "batch"), "memory"),
    (("device", "gpu", "idle", "thread", "util"), "devices"),
)
TITLES = {
    "iterations": "iterations", "ranks": "ranks", "timeline": "time line", "waits": "waits", "kernels": "kernels",
    "ops": "ops", "memory": "memory", "devices": "devices", "op-types": "op types",
}  # fmt: skip


def read_findings(record: Opened) -> list[Finding] | None:
    """None where nobody asked the rules."""
    if record.findings is None:
        return None
    return [_finding(told, record) for told in record.findings[:MOST]]


def _finding(told: Mapping[str, Any], record: Opened) -> Finding:
    rule = str(told.get("rule", ""))
    page = _page(told, rule, record)
    mod = told.get("mod")
    return Finding(
        rule=rule,
        title=str(told.get("title", rule)),
        evidence=_lines(told.get("evidence")),
        mod=str(mod) if mod else "",
        command=str(told.get("command") or told.get("advice") or ""),
        predicted=_gain(told.get("predicted_gain")),
        measured=_gain(told.get("measured_gain")),
        href=href(page, record.name) if page else "",
        where=TITLES.get(page, page),
    )


def _page(told: Mapping[str, Any], rule: str, record: Opened) -> str:
    # Late: the list of pages has this one's dashboard in it.
    from paceline.view.site import pages_of

    there = {page.key for page in pages_of(record)}
    asked = told.get("page") or told.get("table")
    wanted = [str(asked).replace("_", "-")] if asked else []
    wanted += [page for words, page in EVIDENCE if any(word in rule for word in words)]
    return next((page for page in (*wanted, "op-types", "iterations") if page in there), "")


def _lines(evidence: Any) -> list[str]:
    """Evidence is a sentence, a list of them, or names and numbers."""
    if isinstance(evidence, Mapping):
        return [f"{str(name).replace('_', ' ')}: {_value(value)}" for name, value in list(evidence.items())[:50]]
    if isinstance(evidence, list | tuple):
        return [line for each in evidence[:50] for line in _lines(each)]
    return [] if evidence is None else [_value(evidence)]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    return str(value)[:1000]


def _gain(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
