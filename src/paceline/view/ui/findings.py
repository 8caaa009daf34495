"""The findings of a run, each with a link to the page that shows its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.advise.commands import to_type
from paceline.advise.finding import in_sentences
from paceline.reports.wording import say
from paceline.view.records.contents import shows, uses_devices
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import FindingBlock
from paceline.view.ui.links import href

MOST = 200
# Pages, and the rules whose evidence they show. If a record lacks the page, the pages of OTHERWISE follow.
EVIDENCE = {
    "iterations": ("input_bound", "varying_steps", "validation", "checkpoints"),
    "ranks": ("imbalance",),
    "timeline": ("exposed_communication", "gloo_on_gpus", "data_parallel"),
    "waits": ("waiting_lines",),
    "kernels": ("small_kernels", "pageable_copies", "pointwise", "optimizer_step"),
    "ops": ("mixed_precision", "tf32", "channels_last", "cudnn_benchmark", "slow_attention"),
    "memory": ("memory_unused", "memory_full"),
    "devices": ("device_idle",),
    "topology": ("unused_devices", "threads"),
}
PAGE_OF = {rule: page for page, rules in EVIDENCE.items() for rule in rules}
OTHERWISE = ("devices", "op-types", "iterations")
TITLES = {"timeline": "time line", "op-types": "op types"}


def read_findings(record: Opened) -> list[FindingBlock] | None:
    """The findings, or None if the rules did not run."""
    if record.findings is None:
        return None
    return [_finding_block(finding, record) for finding in record.findings[:MOST]]


def _finding_block(finding: Mapping[str, Any], record: Opened) -> FindingBlock:
    rule = str(finding.get("rule", ""))
    page = _evidence_page(rule, record)
    mod = finding.get("mod")
    advice, typed, after = to_type(record.run, str(mod) if mod else "", str(finding.get("advice") or ""))
    if finding.get("command"):
        advice = in_sentences(advice, str(finding.get("numbers") or ""))
        typed, after = str(finding["command"]), False
    return FindingBlock(
        rule=rule,
        title=str(finding.get("title", rule)),
        evidence=_figures(finding.get("evidence")),
        mod=str(mod) if mod else "",
        advice=advice,
        command=typed,
        after=after,
        predicted=_gain(finding.get("predicted_gain")),
        how=str(finding.get("how") or "computed from the tables of this run"),
        measured=_gain(finding.get("measured_gain")),
        tied=finding.get("tied") is True,
        proof=str(finding.get("proof") or ""),
        where=str(finding.get("where") or ""),
        href=href(page, record.name) if page else "",
        page=TITLES.get(page, page),
    )


def _evidence_page(rule: str, record: Opened) -> str:
    pages = (PAGE_OF[rule], *OTHERWISE) if rule in PAGE_OF else OTHERWISE
    # Without GPUs the page of devices shows the load of the machine, which is no evidence of a rule.
    return next((page for page in pages if shows(record, page) and (page != "devices" or uses_devices(record))), "")


def _figures(evidence: Any) -> list[tuple[str, str]]:
    """Evidence as pairs of name and value. A value of an unexpected type becomes text."""
    if isinstance(evidence, Mapping):
        evidence = [{"name": name, "value": value} for name, value in evidence.items()]
    if not isinstance(evidence, list | tuple):
        evidence = [] if evidence is None else [evidence]
    found = []
    for each in evidence[:50]:
        if isinstance(each, Mapping):
            unit = each.get("unit", "")
            found.append(
                (str(each.get("name", ""))[:300], _value(each.get("value"), unit if isinstance(unit, str) else ""))
            )
        else:
            found.append(("", str(each)[:1000]))
    return found


def _value(value: Any, unit: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)[:1000]
    if unit == "s":
        return say(value, "seconds")
    if unit == "bytes":
        return say(value, "bytes")
    if not unit and isinstance(value, float) and 0 <= value <= 1:
        return say(value, "share")
    return f"{say(value, 'number')} {unit}".strip()


def _gain(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
