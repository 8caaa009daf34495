"""The options that several verbs share, beside those of a run (`settings.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from paceline.errors import UsageError
from paceline.options import HOSTS, LABELS, OUTPUT, option
from paceline.record.about.labels import Labels, labels_of
from paceline.strategies import catalog as strategies
from paceline.topology import discover

RECORDS = Path("paceline-runs")


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """The option of every verb."""

    json: bool = option(False, "Print only one JSON document on standard output.", panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class OutputOptions(JsonOptions):
    quiet: bool = option(False, "Show no progress and no tables, only problems.", panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class RecordOptions(OutputOptions):
    record: Path = option(RECORDS, "Folder of the records.", "DIR", panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class HostOptions(JsonOptions):
    """Where workers run, of all verbs that start some. `hosts.py` gets the hosts that they ask for."""

    PANEL: ClassVar = HOSTS
    hosts: str | None = option(
        None,
        "Run on these hosts over ssh, with N workers on each: a:4,b:4. With -n, the first hosts are filled.",
        "HOST:N,…",
        usual="this host",
    )
    hostfile: Path | None = option(None, "The same from a file, with one host on each line: a slots=4.", "FILE")
    discover: str | None = option(
        None,
        "The same from a program, which is run again and again: hosts may come and go (with --elastic).",
        "PROGRAM",
    )
    interface: str | None = option(
        None, "Network interface between the hosts.", "NAME", usual="the fastest that connects all hosts"
    )
    ssh: str = option(
        "ssh", "ssh with its own options, such as 'ssh -p 2222'. Keys and users belong into ~/.ssh/config.", "COMMAND"
    )
    rendezvous: str | None = option(
        None,
        "Run on several hosts without ssh: type the same command on each. HOST is one of them, PORT a free port there.",
        "HOST:PORT",
    )
    nodes: int | None = option(
        None, "Number of hosts at the rendezvous. -n is the number of workers on all of them together.", "N", least=1
    )
    node_rank: int | None = option(
        None, "This host's number at the rendezvous; host 0 must be HOST.", "K", least=0, usual="in order of arrival"
    )
    secret: Path | None = option(
        None, "File with the secret that the hosts of a rendezvous share.", "FILE", usual="the variable PACELINE_SECRET"
    )
    wait: float = option(600.0, "Waiting time for the other hosts of a rendezvous.", "SECONDS", least=1)
    on: Literal["local", "slurm", "mpi", "ray"] | None = option(
        None,
        "Where the workers run.",
        usual="mpirun, the Slurm allocation or the Ray job around this command, else this host",
    )


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(HostOptions, RecordOptions):
    """The options of all verbs that start workers and make a record."""

    oversubscribe: bool = option(False, "Allow more workers than cores or GPUs.")
    name: str | None = option(None, "Name of the record, for people.", "TEXT", panel=LABELS)
    tag: tuple[str, ...] = option(
        (), "Tag of the record; `paceline runs --tag` finds it. May be repeated.", "TAG", panel=LABELS
    )
    note: str | None = option(None, "Note about the record.", "TEXT", panel=LABELS)

    def labels(self) -> Labels:
        """The labels of the record. UsageError if one cannot be used."""
        return labels_of(self.name, self.tag, self.note)


@dataclass(frozen=True, kw_only=True)
class ScriptOptions(WorkerOptions):
    """Those of verbs that run a script on as many workers as there are GPUs."""

    workers: int | None = option(None, "Number of workers.", "N", names="-n --workers", usual="one per GPU")


def default_workers(strategy: str, mods: Sequence[str] = ()) -> int:
    """The number from a mod `workers=N`, or that of the strategy; else one worker per GPU, at least one."""
    said = [mod.removeprefix("workers=") for mod in mods if mod.startswith("workers=")]
    if said:
        return int(said[0])
    asked = strategies.parse(strategy)
    return asked.workers or max(1, len(discover().gpus) // asked.multiple) * asked.multiple


def no_records(folder: Path, verb: str) -> UsageError:
    """The error if the folder of the records does not exist."""
    if folder == RECORDS:
        return UsageError(
            f"There are no records here: {Path.cwd()} has no folder {folder}.",
            advice=f"Make a record: paceline run -n 2 train.py; or name the folder: paceline {verb} --record DIR",
        )
    return UsageError(
        f"--record {folder}: there is no such folder.",
        advice=f"Name the folder of the records, which is mostly called {RECORDS}.",
    )
