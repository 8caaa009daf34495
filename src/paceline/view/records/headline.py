"""The main result of a record in a few words, for lists: the gain of a tune, the knee of a sweep, why a run failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline.errors import PacelineError
from paceline.record.inside import Folder
from paceline.record.schema import Run
from paceline.reports.verdicts import VERBS
from paceline.units import count, percent

LARGEST = 16 << 20  # bytes of a document
TAIL = 64 << 10  # bytes at the end of logged.jsonl
LONGEST = 90  # characters


def headline(run: Run, folder: Folder, *, longest: int = LONGEST) -> str:
    """Empty if the record has no result of its own, as a plain run that logged nothing."""
    outcome = run.outcome
    failed = outcome is not None and outcome.exit_code and not outcome.interrupted
    try:
        found = _of_verdict(run, folder) if run.verb in VERBS and not run.workers else _of_run(run, folder)
    except (PacelineError, OSError, msgspec.DecodeError, RecursionError, ValueError):
        found = ""  # the record's page names the damaged file
    if failed and outcome is not None and (run.workers or not found):
        found = (outcome.cause or outcome.error or f"exit code {outcome.exit_code}").removeprefix("raised ")
    return _short(found, longest)


def _of_verdict(run: Run, folder: Folder) -> str:
    verb, document = VERBS[run.verb], _document(folder, "verdict.json")
    return "" if document is None else verb.headline(verb.read(document))


def _of_run(run: Run, folder: Folder) -> str:
    return _findings(folder) if run.verb == "profile" else _logged(folder)


def _short(text: str, longest: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _document(folder: Folder, name: str) -> Any:
    try:
        return msgspec.json.decode(folder.file(name).read(LARGEST))
    except FileNotFoundError:
        return None


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _findings(folder: Folder) -> str:
    document = _document(folder, "findings.json")
    if not isinstance(document, list):
        return ""
    rows = [row for row in document if isinstance(row, dict)]
    gains = [gain for row in rows if row.get("tied") is not True and (gain := _gain(row)) is not None]
    if not rows:
        return "no findings"
    return count(len(rows), "finding") + (f", up to {max(gains):.3g}×" if gains else "")


def _gain(finding: Mapping[str, Any]) -> float | None:
    """The measured gain of a finding, or the predicted one if no trial measured it."""
    measured = _number(finding.get("measured_gain"))
    return _number(finding.get("predicted_gain")) if measured is None else measured


def _logged(folder: Folder) -> str:
    """The last numbers that the script gave to paceline.log."""
    try:
        data, _ = folder.file("logged.jsonl").read_end(TAIL)
    except FileNotFoundError:
        return ""
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    numbers = _part(msgspec.json.decode(lines[-1]), "numbers") if lines else {}
    told = []
    for name, value in list(numbers.items())[:3]:
        number = _number(value)
        if number is not None:
            share = "acc" in str(name).lower() and 0 <= number <= 1
            told.append(f"{name} {percent(number) if share else f'{number:.4g}'}")
    return ", ".join(told)
