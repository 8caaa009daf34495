"""Rules: tables → findings. One file per rule; no torch, no plotting.

registry.findings(record)    the findings in a record, largest gain first; written to the record's findings.json
registry.find_all(evidence)  the same for evidence from a record, or from traces written elsewhere
finding.mods_of(findings)    the mods that the findings recommend, largest gain first

`finding` and `commands` need no polars: a findings.json can be read without the extra `view`.
"""
