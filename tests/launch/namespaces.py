"""Hosts made of network namespaces on a bridge, each with an sshd of its own. Needs root, `ip` and sshd.

Without sshd (`over_ssh=False`), a command that takes ssh's arguments enters the namespace.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


ENTER = """#!/bin/sh
# ENTER -T -o OPTION … HOST COMMAND
while [ "${{1#-}}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
exec ip netns exec "{tag}n${{1#host}}" sh -c "$2"
"""


def why_not(*, over_ssh: bool = True) -> str:
    """Why there can be no such hosts here; empty if there can."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces need root and ip"
    if over_ssh and (SSHD is None or not shutil.which("ssh")):
        return "there is no sshd (openssh-server)"
    name = f"pltry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "" if made else "this kernel allows no network namespaces"


@dataclass(frozen=True)
class Hosts:
    """`names` are what `ssh` knows; `ssh` is the command that knows them."""

    names: list[str]
    ssh: str
    folder: Path
    spaces: list[str]
    addresses: list[str]

    def spec(self, workers: int) -> str:
        return ",".join(f"{name}:{workers}" for name in self.names)

    def within(self, number: int, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in a host's namespace."""
        line = ["ip", "netns", "exec", self.spaces[number], *command]
        return subprocess.run(line, capture_output=True, text=True, check=False)

    def pids(self, number: int) -> list[int]:
        """The processes in a host's namespace, but sshd's, the oldest first."""
        line = ["ip", "netns", "pids", self.spaces[number]]
        listed = map(int, subprocess.run(line, capture_output=True, text=True).stdout.split())
        return sorted(pid for pid in listed if (words := _command(pid)) and "sshd" not in words)

    def processes(self) -> dict[str, list[str]]:
        """The command lines of all processes in the hosts' namespaces, but sshd's."""
        return {name: [_command(pid) for pid in self.pids(number)] for number, name in enumerate(self.names)}


def _command(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return ""


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def hosts(folder: Path, count: int, *, over_ssh: bool = True) -> Iterator[Hosts]:
    """Removes everything afterwards."""
    tag = f"pl{os.getpid() % 100000}"
    net = f"10.99.{os.getpid() % 200 + 20}"
    bridge = f"{tag}b"
    spaces, addresses = [f"{tag}n{n}" for n in range(count)], [f"{net}.{n + 1}" for n in range(count)]
    names, servers = [f"host{n}" for n in range(count)], []
    if over_ssh:
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key"))
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "user_key"))
        (folder / "authorized").write_text((folder / "user_key.pub").read_text())
        public = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text("".join(f"{address} {public}" for address in addresses))
        os.makedirs("/run/sshd", exist_ok=True)
    else:
        (folder / "enter").write_text(ENTER.format(tag=tag))
        (folder / "enter").chmod(0o700)
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "addr", "add", f"{net}.254/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for number, (space, address) in enumerate(zip(spaces, addresses, strict=True)):
            run("ip", "netns", "add", space)
            run("ip", "link", "add", f"{tag}v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", f"{tag}v{number}", "master", bridge, "up")
            for words in (f"addr add {address}/24 dev eth0", "link set lo up", "link set eth0 up"):
                run("ip", "-n", space, *words.split())
            if not over_ssh:
                continue
            assert SSHD is not None
            config = folder / f"sshd{number}.conf"
            config.write_text(
                f"ListenAddress {address}\nPort 22\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized\n"
                "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            )
            log = (folder / f"sshd{number}.log").open("wb")
            line = ["ip", "netns", "exec", space, SSHD, "-D", "-e", "-f", str(config)]
            servers.append(subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True))
            log.close()
        (folder / "ssh_config").write_text(
            "".join(
                f"Host {name}\n  HostName {address}\n  User root\n  IdentityFile {folder}/user_key\n"
                f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
                for name, address in zip(names, addresses, strict=True)
            )
        )
        for address in addresses if over_ssh else ():
            _until_answers(address)
        command = f"ssh -F {folder}/ssh_config" if over_ssh else str(folder / "enter")
        yield Hosts(names, command, folder, spaces, addresses)
    finally:
        for space in spaces:
            for pid in subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        for server in servers:
            server.wait(10)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def _until_answers(address: str) -> None:
    by = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((address, 22), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > by:
                raise
            time.sleep(0.02)
