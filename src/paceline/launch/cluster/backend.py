"""What a cluster backend is: how agents get to hosts. One file a backend: `ssh.py`, …"""

from __future__ import annotations

from typing import Protocol

from paceline.launch.cluster.hosts import HostSpec

PATIENCE = 16.0  # seconds in which an agent that can be started has started


class Handle(Protocol):
    """A started agent, as the system that has started it sees it."""

    def ended(self) -> str | None:
        """None while it runs; afterwards why it has ended, in words, if the system says so."""
        ...

    def kill(self, patience: float = 5.0) -> None:
        """Lets it end, and ends it after so many seconds, if the system can. An agent that loses its controller ends
        by itself, and all of the run on its host with it."""
        ...


class ClusterBackend(Protocol):
    """Starts one agent on each host of a run."""

    @property
    def patience(self) -> float:
        """Seconds for an agent to say its first word."""
        ...

    def hosts(self) -> list[HostSpec]: ...

    def words(self) -> list[str]:
        """The options of a command that runs on these hosts, typed where this one was."""
        ...

    def start_agent(self, host: HostSpec, variables: dict[str, str], secret_on_stdin: bytes) -> Handle:
        """Returns at once. `secret_on_stdin` must appear in no process list and no log. `variables` may."""
        ...
