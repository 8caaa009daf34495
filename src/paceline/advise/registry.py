"""All rules, in the order of the documentation page, and the functions that apply them to a record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from paceline.advise.commands import complete
from paceline.advise.evidence import Evidence
from paceline.advise.finding import Finding, write_findings
from paceline.advise.rules import (
    channels_last,
    checkpoints,
    cudnn_benchmark,
    data_parallel,
    device_idle,
    exposed_communication,
    gloo_on_gpus,
    imbalance,
    input_bound,
    memory_full,
    memory_unused,
    mixed_precision,
    optimizer_step,
    pageable_copies,
    pointwise,
    slow_attention,
    small_kernels,
    tf32,
    threads,
    unused_devices,
    validation,
    varying_steps,
    waiting_lines,
)

MODULES: tuple[ModuleType, ...] = (
    mixed_precision,
    tf32,
    small_kernels,
    pointwise,
    optimizer_step,
    input_bound,
    pageable_copies,
    waiting_lines,
    device_idle,
    memory_unused,
    memory_full,
    unused_devices,
    data_parallel,
    gloo_on_gpus,
    exposed_communication,
    imbalance,
    varying_steps,
    channels_last,
    cudnn_benchmark,
    slow_attention,
    threads,
    validation,
    checkpoints,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `find` returns a finding for the evidence of one run, or None. `about` is its description."""

    name: str
    find: Callable[[Evidence], Finding | None]

    @property
    def about(self) -> str:
        return inspect.getdoc(self.find) or ""


RULES = tuple(Rule(module.__name__.rpartition(".")[2], module.find) for module in MODULES)


def find_all(evidence: Evidence, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """The findings of all rules, largest predicted gain first; those without a prediction last."""
    found = [
        complete(finding, evidence.run, evidence.first_facts)
        for rule in rules
        if (finding := rule.find(evidence)) is not None
    ]
    return sorted(found, key=lambda finding: -(finding.predicted_gain or 0.0))


def findings(record: Path) -> list[Finding]:
    """Finds and writes a record's findings (`findings.json`). RecordError or TraceError if the record is damaged."""
    found = find_all(Evidence.of_record(record))
    write_findings(record, found)
    return found
