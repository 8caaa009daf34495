"""Hosts over ssh: an agent is a command on the host, and ends with its connection."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import LaunchError
from paceline.launch.cluster.backend import PATIENCE
from paceline.launch.cluster.hosts import HostSpec, filled, parse_lines
from paceline.launch.cluster.process import ProcessAgent, agent_command

HERE = ("localhost", "127.0.0.1")  # no ssh is needed
DISCOVERY = 30.0  # seconds for the program that lists hosts
# Never asks for a password, and notices a dead connection.
OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "LogLevel=ERROR")


@dataclass(frozen=True)
class SshHosts:
    """`ssh` is the command with its own options, as in `rsync -e`; keys and users belong into ~/.ssh/config. `python`
    is the interpreter on the hosts."""

    listed: Sequence[HostSpec]
    ssh: str = "ssh"
    python: str = sys.executable
    patience: ClassVar[float] = PATIENCE

    def hosts(self) -> list[HostSpec]:
        return list(self.listed)

    def words(self) -> list[str]:
        return ["--hosts", ",".join(map(str, self.listed)), *self._own_ssh]

    @property
    def _own_ssh(self) -> list[str]:
        return [] if self.ssh == "ssh" else ["--ssh", self.ssh]

    def start_agent(self, host: HostSpec, variables: Mapping[str, str], secret_on_stdin: bytes) -> ProcessAgent:
        return ProcessAgent(self._there(host, agent_command(variables, self.python)), secret_on_stdin)

    def reaches(self, host: HostSpec) -> bool:
        """Whether the host answers. Waits for it."""
        try:
            done = subprocess.run(
                self._there(host, ["true"]), capture_output=True, stdin=subprocess.DEVNULL, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def _there(self, host: HostSpec, command: Sequence[str]) -> list[str]:
        if host.name in HERE:
            return list(command)
        options = [word for option in OPTIONS for word in ("-o", option)]
        return [*shlex.split(self.ssh), "-T", *options, host.name, f"exec {shlex.join(command)}"]


@dataclass(frozen=True)
class FoundHosts(SshHosts):
    """Hosts that come and go: a program prints those that there are now, as in a hostfile. `most`: the workers that
    are wanted, on the first hosts; None: on all."""

    program: str = ""
    most: int | None = None

    def words(self) -> list[str]:
        return ["--discover", self.program, *self._own_ssh]

    def hosts(self) -> list[HostSpec]:
        try:
            done = subprocess.run(
                shlex.split(self.program), capture_output=True, text=True, timeout=DISCOVERY, stdin=subprocess.DEVNULL
            )
            why = f"it ended with exit code {done.returncode}: {done.stderr.strip()[-200:]}" if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why:
            raise LaunchError(
                f"--discover {self.program} failed: {why}.", advice="It must print hosts, one on a line: a slots=4"
            )
        found = parse_lines(done.stdout, f"--discover {self.program}")
        return found if self.most is None else list(filled(found, self.most))
