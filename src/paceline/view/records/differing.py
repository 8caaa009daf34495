"""The settings in which runs differ: options, mods, arguments, code, packages, variables, machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.record.about.origin import Origin
from paceline.view.records.record import Opened

MOST = 200  # rows
# Settings that say where something is kept, not how the run works.
_PLACES = ("record", "folder", "scratch", "report", "token")


def settings_of(record: Opened) -> dict[str, str]:
    """Everything that can make runs differ, by name, in words."""
    run = record.run
    found: dict[str, Any] = {
        "script": run.script,
        "arguments": " ".join(run.arguments),
        "workers": len(run.workers) or None,
        "mods": ", ".join(run.mods) or "none",
        "strategy": run.strategy,
        "view": run.outcome.view if run.outcome else "",
        "host": ", ".join(sorted({worker.host for worker in run.workers})),
        "GPUs": sum(bool(worker.gpus) for worker in run.workers),
        "threads of a worker": run.workers[0].threads if run.workers else None,
        "paceline": run.paceline,
        **run.versions,
        **_origin(record.origin),
    }
    for name, value in _flat(run.settings):
        if name not in ("script", "arguments", "workers", "mods", "strategy") and not name.endswith(_PLACES):
            found.setdefault(name.replace("_", " "), value)
    return {name: _say(value) for name, value in found.items()}


def _origin(origin: Origin | None) -> dict[str, Any]:
    """The code, the packages and the variables."""
    if origin is None:
        return {}
    tree = origin.git
    return {
        "git commit": tree.commit[:12] if tree is not None else None,
        "changed files": tree.changed if tree is not None else None,
        "script's content": origin.script_sha256[:12],
        **{f"package {name}": version for name, version in origin.packages.items()},
        **{f"variable {name}": value for name, value in origin.environment.items()},
    }


def differing(records: Sequence[Opened]) -> list[tuple[str, list[str]]]:
    """Names of the settings whose values differ, each with one value per record."""
    told = [settings_of(record) for record in records]
    names = dict.fromkeys(name for each in told for name in each)
    rows = [(name, [each.get(name, "") for each in told]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1][:MOST]


def _flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and len(before) < 100:
            found += _flat(value, f"{before}{name} ")
        else:
            found.append((f"{before}{name}", value))
    return found


def _say(value: Any) -> str:
    if value is None or value == "" or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_say, value))
    return str(value)
