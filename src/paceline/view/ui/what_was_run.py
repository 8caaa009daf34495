"""What was run and how it ended: the command, the outcome as notes, and the facts at the end of a page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from paceline.advise import commands
from paceline.record.about.origin import Origin
from paceline.reports.report import Sentence
from paceline.reports.wording import say
from paceline.units import count
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, FactsBlock

MOST_NOTICES = 20
MOST_WORKERS = 16


def command(record: Opened, *, verb: str = "", more: Sequence[str] = (), mods: Sequence[str] | None = None) -> str:
    """The command as it was typed; put together from the settings if it is not known, or if it is another command:
    `verb` replaces the verb, `mods` the mods; `more` are further options, among which -n replaces the number of
    workers."""
    if record.origin is not None and not verb and not more and mods is None:
        return record.origin.line
    run = record.run
    if run.verb == "bandwidth":
        return shlex.join(["paceline", verb or run.verb, *_workers_of_bandwidth(record)])
    return commands.command(run, verb=verb or run.verb, more=more, mods=mods)


def _workers_of_bandwidth(record: Opened) -> list[str]:
    """The settings of `bandwidth` are one plan per trial."""
    plan = record.run.settings.get("workers")
    workers = plan.get("workers") if isinstance(plan, dict) else None
    return ["-n", str(workers)] if isinstance(workers, int) else []


def outcome_notes(record: Opened) -> list[Block]:
    """How the run ended, if it did not simply succeed, and its notices."""
    outcome = record.run.outcome
    if outcome is None:
        stopped = "The run wrote no outcome: the run was killed, or its machine stopped."
        return [Sentence(stopped, "bad")] if record.state == "stopped" else []
    blocks: list[Block] = []
    if outcome.message:
        blocks.append(Sentence.of_failure(outcome.message))
    elif outcome.interrupted:
        blocks.append(Sentence("The run was interrupted.", "warn"))
    if outcome.notices:
        blocks.append(Sentence("\n".join(outcome.notices[:MOST_NOTICES])))
    return blocks


def _origin(origin: Origin | None) -> list[tuple[str, str]]:
    """Where the command was typed, and the state of the code."""
    if origin is None:
        return []
    tree = origin.git
    found = [("folder", origin.directory)]
    found += [("default", f"{words}: {source}") for words, source in origin.defaults.items()]
    if tree is not None:
        kept = f", kept in {tree.diff}" if tree.diff else ""
        cut = ", without the last files" if tree.cut else ""
        state = (
            ""
            if tree.dirty is False
            else f"; {count(tree.changed, 'changed file')}{kept}{cut}"
            if tree.dirty
            else "; not known"
        )
        found.append(("git", f"{tree.commit or 'no commit yet'}{f' ({tree.branch})' if tree.branch else ''}{state}"))
        found.append(("not in git", ", ".join(tree.untracked)))
    found += [("resumed by", shlex.join(words)) for words in origin.resumed]
    return [*found, *((name, value) for name, value in origin.environment.items())]


def facts(record: Opened, *, open: bool = False) -> FactsBlock:
    """Command, time, strategy, versions and workers."""
    run = record.run
    found = [
        ("command", command(record)),
        ("name", record.labels.name),
        ("tags", ", ".join(record.labels.tags)),
        ("note", record.labels.note),
        *_origin(record.origin),
        ("record", str(record.folder)),
        ("began", say(run.started or None, "moment")),
        ("took", say(run.outcome.seconds if run.outcome else None, "seconds")),
        ("strategy", run.strategy if run.workers else ""),
        ("view", run.outcome.view if run.outcome else ""),
        ("mods", ", ".join(run.mods) or "none"),
        ("paceline", run.paceline),
        *((name, version) for name, version in run.versions.items()),
    ]
    for worker in run.workers[:MOST_WORKERS]:
        on = f"GPU {', '.join(worker.gpus[:1])}" if worker.gpus else f"cores {', '.join(map(str, worker.cores[:32]))}"
        found.append((f"rank {worker.rank}", f"{worker.host}, process {worker.pid}, {on}, {worker.threads} threads"))
    if len(run.workers) > MOST_WORKERS:
        found.append(("…", f"and {len(run.workers) - MOST_WORKERS} more workers"))
    return FactsBlock(title="What was run", facts=[(name, value) for name, value in found if value], open=open)
