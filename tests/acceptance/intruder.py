"""Another account on the same host, doing all it can to get into a run.

Looks for what processes of the victim listen on, within the host: takes every TCP port for torch's store and writes
into it what would make workers open this process's memory; connects to every Unix socket; opens what it finds of the
victim's processes in /proc, and the sockets in temporary folders. Both are in a network of their own, so that nothing
else on this host is attacked.
"""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import json
import os
import select
import socket
import struct
from pathlib import Path

import torch.distributed as dist

KEYS = ("region", "memory", "process0", "host0", "0", "0/1")
PLACES = (
    "paceline/rows/",
    "paceline/sums/ready/",
    "paceline/sums/done/",
    "paceline/paceline/rows/",
    "paceline/buckets/",
    "engine/",
    "default_pg/0//engine/",
    "default_pg/0//",
    "",
)


def listening(victim: int) -> set[int]:
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[7]) == victim:
            found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def unix_sockets() -> set[bytes]:
    found = set()
    for line in Path("/proc/net/unix").read_bytes().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[5] == b"01":  # listens
            found.add(b"\0" + fields[7][1:] if fields[7].startswith(b"@") else fields[7])
    return found


def keep_writing(port: int, memory: int, into: int) -> None:
    """In a process of its own: takes a port for torch's store, and writes for as long as it lets us."""
    if os.fork():
        return
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=20))
        os.write(into, f"{port}\n".encode())
        while True:
            for place in PLACES:
                for key in KEYS:
                    store.set(place + key, f"{os.getpid()} {memory}")
    except BaseException:
        pass
    finally:
        os._exit(0)


def connect(address: bytes) -> bool:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(0.3)
        try:
            peer.connect(address)
            peer.sendall(b"\0" * 64)
            return bool(peer.recv(1))
        except OSError:
            return False


def look_into(process: Path) -> list[str]:
    try:
        return [name for name in os.listdir(process / "fd") if os.access(process / "fd" / name, os.R_OK)]
    except OSError:
        return []


def owned_by(process: Path, victim: int) -> bool:
    try:
        return process.stat().st_uid == victim
    except OSError:
        return False


def attack(victim: int, go_on: int, tell: int) -> None:
    """Until `go_on` is closed; then says as JSON what it got hold of."""
    memory = os.memfd_create("paceline")
    os.ftruncate(memory, 1 << 26)
    before_ports, before_sockets = listening(victim), unix_sockets()
    before = set(os.listdir("/proc"))
    stores, into = os.pipe2(os.O_NONBLOCK)
    os.write(into, b"\n")
    tried: set[int] = set()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch tells of each attempt that fails
    got: dict[str, set[str]] = {"stores": set(), "sockets": set(), "processes": set(), "files": set()}
    os.write(tell, b"ready\n")
    while not select.select([go_on], [], [], 0.02)[0]:  # leaves the victim a core
        for port in listening(victim) - before_ports - tried:
            tried.add(port)
            keep_writing(port, memory, into)
        for address in unix_sockets() - before_sockets:
            if connect(address):
                got["sockets"].add(repr(address))
        for name in set(os.listdir("/proc")) - before:
            if name.isdigit() and owned_by(Path("/proc") / name, victim) and look_into(Path("/proc") / name):
                got["processes"].add(name)
        for name in os.listdir("/tmp"):
            if os.access(f"/tmp/{name}/control", os.F_OK):
                got["files"].add(name)
    got["stores"] = set(os.read(stores, 65536).decode().split())
    os.write(tell, json.dumps({kind: sorted(things) for kind, things in got.items()}).encode())


NEW_NETWORK = 0x40000000
SET_FLAGS, IS_UP = 0x8914, 1


def make_network() -> None:
    """From now on this process has a network of its own, with a loopback."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace can be made")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh", b"lo", IS_UP))


class Intruder:
    """Forked, since the account may not be able to read this Python's files."""

    def __init__(self, account: int) -> None:
        victim = os.geteuid()
        theirs, self._go_on = os.pipe()
        self._heard, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go_on)
                make_network()
                os.setgroups([])
                os.setgid(account)
                os.setuid(account)
                attack(victim, theirs, tell)
            except BaseException as error:
                os.write(tell, repr(error).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        os.close(tell)
        self.trouble = os.read(self._heard, 1000).decode().removeprefix("ready\n")
        self._network = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY) if not self.trouble else -1

    def join_its_network(self) -> None:
        """For the victim, before it is executed."""
        ctypes.CDLL(None).setns(self._network, NEW_NETWORK)

    def stop(self) -> dict[str, list[str]]:
        """What it got hold of."""
        os.close(self._go_on)
        if self._network >= 0:
            os.close(self._network)
        said = b""
        while part := os.read(self._heard, 65536):
            said += part
        os.close(self._heard)
        os.waitpid(self.pid, 0)
        try:
            return json.loads(said)
        except ValueError:
            raise AssertionError(said.decode()) from None
