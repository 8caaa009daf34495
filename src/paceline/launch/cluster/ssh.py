"""Hosts over ssh: an agent is a command on the host, and ends with its connection."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.launch.cluster.backend import PATIENCE
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.process import ProcessAgent, agent_command

HERE = ("localhost", "127.0.0.1")  # no ssh is needed
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

    def start_agent(self, host: HostSpec, variables: Mapping[str, str], secret_on_stdin: bytes) -> ProcessAgent:
        command = agent_command(variables, self.python)
        if host.name not in HERE:
            options = [word for option in OPTIONS for word in ("-o", option)]
            command = [*shlex.split(self.ssh), "-T", *options, host.name, f"exec {shlex.join(command)}"]
        return ProcessAgent(command, secret_on_stdin)
