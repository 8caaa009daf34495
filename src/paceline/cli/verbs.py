"""The verbs of `paceline`. A verb's module is imported at its first use: a command needs one of them, and help none."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from paceline.cli.help import program

# What `paceline --help` says of each verb; its module in this package has it as `app`.
VERBS = {
    "demo": "Shows Paceline here in three minutes: same numbers on workers, a short tune, what to type next.",
    "run": "Runs an unmodified script on N workers, with the same numbers.",
    "submit": "Writes a job for a scheduler, and submits it.",
    "profile": "Traces a few steps and shows where their time goes: op by op, on host and device, and waiting lines.",
    "scale": "Measures throughput, speed-up and efficiency by number of workers, and checks that the numbers stay the "
    "same.",
    "sweep": "Measures throughput by batch size, up to the largest batch that fits, and finds the knee of the curve.",
    "tune": "Finds the mods that make a script faster, measures the gain of each, and checks the losses.",
    "converge": "Compares the accuracy of large-batch techniques side by side. Emulates N workers on this machine.",
    "plan": "Predicts steps, efficiency and price on a cluster that is not there, from a record of this machine.",
    "topo": "Shows the machine: devices, links, NUMA nodes and NICs. With --choose, also which GPUs to use.",
    "bandwidth": "Measures bandwidth and latency between workers, between GPUs, and of each collective; flags slow "
    "links.",
    "data": "Packs images and datasets into TFRecord files, and checks such files.",
    "checkpoint": "Shows, verifies and converts checkpoints of paceline.save.",
    "view": "Shows records in a browser: dashboards, ops, kernels, timelines, results. Works offline.",
    "runs": "Lists records, newest first; names, tags, notes, deletes and prunes them.",
    "mods": "Lists the mods: what each mod does, and whether the script's numbers stay the same.",
    "doctor": "Checks whether this machine can run workers, and prints what to type if a check fails.",
}


class Verbs(MutableMapping[str, Any]):
    """The commands of the program by name, read when they are asked for: that takes longer than most verbs."""

    def __init__(self) -> None:
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in VERBS:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = typer.main.get_command(import_module(f"paceline.cli.{name}").app)
            self._read[name].help = VERBS[name]
        return self._read[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._read[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("verbs cannot be removed")

    def __contains__(self, name: object) -> bool:
        return name in VERBS

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class Program(program("paceline run -n 4 train.py --epochs 3", "paceline scale -n 1,2,4 train.py --epochs 1")):  # type: ignore[misc]
    """`paceline` itself."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.commands: MutableMapping[str, Any] = Verbs()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        verbs = self.commands
        self.commands = {name: TyperCommand(name, help=about) for name, about in VERBS.items()}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = verbs
