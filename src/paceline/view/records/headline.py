"""The main result of a record in a few words, for lists: the gain of a tune, the knee of a sweep, why a run failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline.errors import PacelineError
from paceline.record.inside import Folder
from paceline.record.schema import Run
from paceline.trials.tune.verdict import Verdict
from paceline.units import count, percent

LARGEST = 16 << 20  # bytes of a document
TAIL = 64 << 10  # bytes at the end of logged.jsonl
LONGEST = 90  # characters


def headline(run: Run, folder: Folder, *, longest: int = LONGEST) -> str:
    """Empty if the record has no result of its own, as a plain run that logged nothing."""
    outcome = run.outcome
    failed = outcome is not None and outcome.exit_code and not outcome.interrupted
    try:
        found = _OF_VERB.get(run.verb, _logged)(folder) if not run.workers else _of_run(run, folder)
    except (PacelineError, OSError, msgspec.DecodeError, RecursionError, ValueError):
        found = ""  # the record's page names the damaged file
    if failed and outcome is not None and (run.workers or not found):
        found = (outcome.cause or outcome.error or f"exit code {outcome.exit_code}").removeprefix("raised ")
    return _short(found, longest)


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


def _verdict(folder: Folder) -> Mapping[str, Any]:
    document = _document(folder, "verdict.json")
    return document if isinstance(document, dict) else {}


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _rows(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _tune(folder: Folder) -> str:
    return msgspec.convert(_verdict(folder), Verdict).conclusion.short


def _sweep(folder: Folder) -> str:
    verdict = _verdict(folder)
    measured = [row for row in _rows(verdict, "points") if row.get("fits") is True]
    if len(measured) == 1:
        return "one batch was measured: no knee"
    knee, best = _number(verdict.get("knee")), _number(verdict.get("best"))
    if knee is not None:
        return f"knee at batch {knee:,.0f}"
    tied = verdict.get("tied")
    if best is None and isinstance(tied, list) and tied:
        return "no knee: equally fast, within the noise"
    if best is None and not measured:
        return str(verdict.get("why") or "")
    return f"best at batch {best:,.0f}" if best is not None else ""


def _scale(folder: Folder) -> str:
    points = _rows(_verdict(folder), "points")
    workers, speedup, efficiency = (
        _number(points[-1].get(name)) if points else None for name in ("workers", "speedup", "efficiency")
    )
    if workers is None or speedup is None or len(points) < 2:
        return ""
    if points[-1].get("tied") is True:
        return f"{count(int(workers), 'worker')}: no difference measured"
    shared = f", {percent(efficiency, digits=0)} efficiency" if efficiency is not None else ""
    return f"{speedup:.3g}× on {count(int(workers), 'worker')}{shared}"


def _converge(folder: Folder) -> str:
    verdict = _verdict(folder)
    told = verdict.get("tied")
    tied = [str(name) for name in told] if isinstance(told, list) else []
    named = verdict.get("chosen") or next(iter(tied), None)
    best = next((row for row in _rows(verdict, "rows") if row.get("technique") == named), {})
    accuracy = _number(_part(best, "accuracy").get("mean"))
    if accuracy is None:
        return "no technique gave an accuracy" if _rows(verdict, "rows") else ""
    if len(tied) > 1:
        return f"accuracy {percent(accuracy)}, a tie of {', '.join(tied[:3])}{', …' * (len(tied) > 3)}"
    return f"accuracy {percent(accuracy)} with {named}"


def _bandwidth(folder: Folder) -> str:
    rates = [
        rate
        for row in _rows(_verdict(folder), "collectives")
        if row.get("op") == "all_reduce" and (rate := _number(row.get("busbw"))) is not None
    ]
    return f"all-reduce {max(rates):.3g} GB/s" if rates else ""


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


def _plan(folder: Folder) -> str:
    verdict = _verdict(folder)
    last = next(iter(_rows(verdict, "rows")[-1:]), {})
    share, workers = _number(last.get("efficiency")), _number(last.get("workers"))
    if share is None or workers is None:
        return ""
    return f"{percent(share, digits=0)} efficiency predicted on {workers:,.0f} workers of {verdict.get('cluster')}"


_OF_VERB = {
    "tune": _tune,
    "sweep": _sweep,
    "scale": _scale,
    "converge": _converge,
    "bandwidth": _bandwidth,
    "plan": _plan,
}
