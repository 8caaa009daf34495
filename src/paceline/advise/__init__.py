"""Rules: tables → findings. One file per rule; no torch, no plotting.

findings(record)      the findings in a record, largest gain first; written to the record's findings.json
find_all(evidence)    the same for evidence from a record, or from traces written elsewhere
mods_of(findings)     the mods that the findings recommend, largest gain first
"""

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, read_findings, write_findings
from paceline.advise.registry import RULES, Rule, find_all, findings, mods_of

__all__ = [
    "RULES",
    "Evidence",
    "Figure",
    "Finding",
    "Rule",
    "find_all",
    "findings",
    "mods_of",
    "read_findings",
    "write_findings",
]
