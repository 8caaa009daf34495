"""A real Slurm on this machine: munged, slurmctld, and a slurmd for each node. Needs root, slurm-wlm and munge."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol")


def why_not() -> str:
    """Why there can be no Slurm here; empty if there can."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        return f"there is no {missing[0]} (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class NoSlurm(Exception):
    """It could not be started. The text says why."""


@dataclass(frozen=True)
class Slurm:
    """`environment` has what Slurm's commands need."""

    environment: dict[str, str]
    folder: Path

    def typed(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=100, cwd=self.folder)
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return found


@contextlib.contextmanager
def slurm(folder: Path, nodes: int) -> Iterator[Slurm]:
    """Stops everything afterwards. NoSlurm if it cannot be started."""
    control, *ports = free_ports(1 + nodes)
    name, cores = socket.gethostname(), os.cpu_count() or 1
    for each in ("state", "munge", *(f"spoolnode{n}" for n in range(nodes))):
        (folder / each).mkdir(mode=0o755)
    os.chmod(folder, 0o755)
    key, conf = folder / "munge" / "key", folder / "slurm.conf"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    lines = [
        "ClusterName=paceline",
        f"SlurmctldHost={name}(127.0.0.1)",
        f"SlurmctldPort={control}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        # A job that goes back into the queue waits until its credential has expired: 120 s without this.
        f"AuthInfo=socket={folder}/munge/socket,cred_expire=5",
        "CredType=cred/munge",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "MpiDefault=none",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        "JobRequeue=1",
        "KillWait=5",
        "MinJobAge=300",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool%n",
        f"SlurmdPidFile={folder}/slurmd.%n.pid",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        *(
            f"NodeName=node{n} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={max(4, cores)} State=UNKNOWN"
            for n, port in enumerate(ports)
        ),
        f"PartitionName=main Nodes=node[0-{nodes - 1}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES",
    ]
    conf.write_text("\n".join(lines) + "\n")
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={_cgroup_plugin()}\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    environment |= {"SLURM_CONF": str(conf), "PATH": PATH}
    found = Slurm(environment, folder)
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> None:
        with (folder / f"{Path(words[0]).name}.{len(started)}.log").open("wb") as log:
            started.append(
                subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=folder)
            )

    munge = folder / "munge"
    try:
        start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={munge}/socket",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )
        _until(lambda: (munge / "socket").exists(), started, folder)
        start("slurmctld", "-D", "-f", str(conf))
        for n in range(nodes):
            start("slurmd", "-D", "-f", str(conf), "-N", f"node{n}")
        _until(
            lambda: found.typed("sinfo", "-h", "-o", "%T %D", check=False).split() == ["idle", str(nodes)],
            started,
            folder,
        )
        yield found
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True, timeout=60, check=False)
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _cgroup_plugin() -> str:
    """No plugin, which Slurm knows since 23.11; before, the one for groups of this kernel's kind."""
    found = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, env={"PATH": PATH}, check=False).stdout
    version = found.split()[-1].split(".") if found.split() else ["0"]
    if [int(part) for part in version[:2] if part.isdigit()] >= [23, 11]:
        return "disabled"
    return "cgroup/v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "cgroup/v1"


def _until(is_so: Callable[[], bool], started: list[subprocess.Popen[bytes]], folder: Path) -> None:
    by = time.monotonic() + 40
    while not is_so():
        ended = [process for process in started if process.poll() is not None]
        if ended or time.monotonic() > by:
            logs = "\n".join(log.read_text(errors="replace")[-800:] for log in folder.glob("*.log"))
            raise NoSlurm(f"Slurm could not be started: {logs}")
        time.sleep(0.1)
