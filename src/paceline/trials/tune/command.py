"""The `paceline run` command that a search ends with: what is printed is what the last check runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from paceline.options import repeated
from paceline.settings import RunSettings
from paceline.trials.tune.candidates import settings_of


def command(settings: RunSettings, *options: str, hosts: Sequence[str] = ()) -> list[str]:
    """The `paceline run` command with the options of the trials. `hosts`: the options about hosts, as typed."""
    typed = repeated(RunSettings, asdict(settings), "run")
    script = ["-m", settings.script] if settings.module else [settings.script]
    return ["paceline", "run", *options, *hosts, *typed, *script, *settings.arguments]


def spelled_out(settings: RunSettings, mods: Sequence[str], *, hosts: Sequence[str] = ()) -> list[str]:
    """The `paceline run` command with every mod written out."""
    applied, changes = settings_of(mods)
    changed = replace(settings, **changes)
    options = ["-n", str(changed.workers)] if changed.workers > 1 or hosts else []
    return command(changed, *options, *(word for mod in applied for word in ("--mod", mod)), hosts=hosts)
