"""Rules: tables → findings. One file a rule; no torch, no plotting.

findings(record)      what the rules find in a record, most gain first; the record keeps it in findings.json
find_all(evidence)    the same, of evidence: a record's, or of traces that were written elsewhere
mods_of(findings)     the mods that they ask for, most gain first
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
