"""The options about hosts, of all verbs that start workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from paceline.cli.options import HOSTS

Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="HOST:N,…",
        help="Run on these hosts over ssh, with N workers on each: a:4,b:4. With -n, the first hosts are filled.",
        show_default="this host",
        rich_help_panel=HOSTS,
    ),
]
HostFile = Annotated[
    Path | None,
    typer.Option(
        "--hostfile",
        metavar="FILE",
        help="The same from a file, with one host on each line: a slots=4.",
        show_default=False,
        rich_help_panel=HOSTS,
    ),
]
Discover = Annotated[
    str | None,
    typer.Option(
        "--discover",
        metavar="PROGRAM",
        help="The same from a program, which is run again and again: hosts may come and go (with --elastic).",
        show_default=False,
        rich_help_panel=HOSTS,
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        "--interface",
        metavar="NAME",
        help="Network interface between the hosts.",
        show_default="the fastest that connects all hosts",
        rich_help_panel=HOSTS,
    ),
]
Ssh = Annotated[
    str,
    typer.Option(
        "--ssh",
        metavar="COMMAND",
        help="ssh with its own options, such as 'ssh -p 2222'. Keys and users belong into ~/.ssh/config.",
        rich_help_panel=HOSTS,
    ),
]
Rendezvous = Annotated[
    str | None,
    typer.Option(
        "--rendezvous",
        metavar="HOST:PORT",
        help="Run on several hosts without ssh: type the same command on each. HOST is one of them, PORT a free port "
        "there.",
        show_default=False,
        rich_help_panel=HOSTS,
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        metavar="N",
        min=1,
        help="Number of hosts at the rendezvous. -n is the number of workers on all of them together.",
        show_default=False,
        rich_help_panel=HOSTS,
    ),
]
NodeRank = Annotated[
    int | None,
    typer.Option(
        "--node-rank",
        metavar="K",
        min=0,
        help="This host's number at the rendezvous; host 0 must be HOST.",
        show_default="in order of arrival",
        rich_help_panel=HOSTS,
    ),
]
Secret = Annotated[
    Path | None,
    typer.Option(
        "--secret",
        metavar="FILE",
        help="File with the secret that the hosts of a rendezvous share.",
        show_default="the variable PACELINE_SECRET",
        rich_help_panel=HOSTS,
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=1,
        help="Waiting time for the other hosts of a rendezvous.",
        rich_help_panel=HOSTS,
    ),
]
On = Annotated[
    Literal["local", "slurm", "mpi", "ray"] | None,
    typer.Option(
        "--on",
        help="Where the workers run.",
        show_default="mpirun, the Slurm allocation or the Ray job around this command, else this host",
        rich_help_panel=HOSTS,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The options as typed. `clusters.py` gets the hosts that they ask for."""

    hosts: Hosts = None
    hostfile: HostFile = None
    discover: Discover = None
    interface: Interface = None
    ssh: Ssh = "ssh"
    rendezvous: Rendezvous = None
    nodes: Nodes = None
    node_rank: NodeRank = None
    secret: Secret = None
    wait: Wait = 600.0
    on: On = None
