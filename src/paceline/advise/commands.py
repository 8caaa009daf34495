"""Complete commands for a finding: they keep the options of the run, and were checked against its facts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from paceline.advise.finding import Finding
from paceline.mods import catalog
from paceline.mods.prospects import why_idle
from paceline.options import repeated
from paceline.record.facts import Facts
from paceline.record.schema import Run
from paceline.settings import RunSettings

WORKERS = "workers"
UNDER_LAUNCHERS = (WORKERS, "threads")  # mods that --as takes
DISTRIBUTES_ITSELF = "the script distributes itself."
# A command in an advice whose script is left out: `paceline run --backend nccl …`.
_SHORTENED = re.compile(r"paceline (\w+) ((?:(?!paceline|—|…)[^'\"])*)…")
NUMBERS = {"same": "", "rounded": "The numbers change by rounding.", "other": "The numbers change."}


def command(run: Run, *, verb: str, more: Sequence[str] = (), mods: Sequence[str] | None = None) -> str:
    """The command line of a verb for the script of this run, with the run's options and mods. `mods` replaces the mods;
    `more` are further options, among which -n replaces the number of workers."""
    settings, workers = run.settings, run.settings.get("workers")
    typed = ["paceline", verb]
    if isinstance(workers, int) and (workers > 1 or run.verb in ("run", "profile")) and verb in ("run", "profile"):
        typed += ["-n", str(workers)] if "-n" not in more else []
    mods = run.mods if mods is None else mods
    if any(mod.startswith("threads=") for mod in mods):
        settings = settings | {"threads": None}  # the mod replaces the option
    replaced = {word.removeprefix("--").replace("-", "_"): None for word in more}
    typed += repeated(RunSettings, settings | replaced, verb)
    typed += [word for mod in mods for word in ("--mod", mod)]
    if isinstance(hosts := run.topology.get("options"), list):
        typed += map(str, hosts)
    script = ["-m", run.script] if settings.get("module") is True else [run.script]
    return shlex.join([*typed, *more, *script, *run.arguments])


def to_type(run: Run, mod: str, advice: str) -> tuple[str, str, bool]:
    """The advice without its shortened command, that command in full, and whether it is to be typed after a change of
    the script by hand."""
    found = _SHORTENED.search(advice)
    rest = (advice[: found.start()] + advice[found.end() :]).strip(" —;") if found else advice
    if mod:
        name, _, value = mod.partition("=")
        kept = [other for other in run.mods if other.partition("=")[0] != name]
        if name == WORKERS:
            return rest, command(run, verb="run", more=["-n", value], mods=kept), False
        return rest, command(run, verb="run", mods=[*kept, mod]), False
    if found:
        return rest, command(run, verb=found[1], more=shlex.split(found[2])), False
    return rest, command(run, verb="profile"), True


def complete(finding: Finding, run: Run | None, facts: Facts | None = None) -> Finding:
    """Puts the whole command into a finding, and whether it changes numbers. A mod that cannot act in the script is
    not advised: the finding says why."""

    def why_not(mod: str) -> str:
        if run is not None and run.settings.get("launch_as") and mod.partition("=")[0] not in UNDER_LAUNCHERS:
            return DISTRIBUTES_ITSELF
        return why_idle(mod, facts) if facts is not None else ""

    if finding.mod and (why := why_not(finding.mod)):
        able = [mod for mod in finding.others if not why_not(mod)]
        if not able:
            finding.advice = f"In the script, by hand: what --mod {finding.mod} does. The mod itself cannot act: {why}"
        finding.mod, finding.others = (able[0], able[1:]) if able else ("", [])
    if run is None:
        return finding
    rest, typed, after = to_type(run, finding.mod, finding.advice)
    if not after:
        finding.advice, finding.command = rest, typed
    name = finding.mod.partition("=")[0]
    if name == WORKERS:
        finding.numbers = NUMBERS["rounded"]
    elif name:
        finding.numbers = NUMBERS[catalog.CATALOG[name].numbers]
    return finding
