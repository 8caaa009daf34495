"""The command `paceline-horovodrun`: Horovod's flags become options of `paceline run --as horovod`."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import __version__
from paceline.__main__ import main as paceline
from paceline.cli.horovodrun.flags import Read, help_text, read, read_config
from paceline.errors import PacelineError, UsageError
from paceline.launch.cluster import hosts
from paceline.launch.cluster.ssh import HERE
from paceline.settings import horovod_environment, is_one_of_several

if TYPE_CHECKING:
    from paceline.cli.session import Session

PYTHON = re.compile(r"python[0-9.]*")
EXAMPLE = "Type: paceline-horovodrun -np 2 python train.py"
AVAILABLE = """\
Paceline {version}, with Horovod's interface:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch
    [ ] MXNet

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    [{nccl}] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [X] Gloo"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    try:
        asked = read(sys.argv[1:] if argv is None else argv)
        if "help" in asked.values:
            print(help_text())
            return 0
        if "version" in asked.values:
            print(__version__)
            return 0
        if "check_build" in asked.values:
            print(AVAILABLE.format(version=__version__, nccl="X" if _has_nccl() else " "))
            return 0
        arguments = run_arguments(asked)
    except PacelineError as error:
        print(f"paceline-horovodrun: {error.message.removeprefix('paceline-horovodrun ')}", file=sys.stderr)
        print(f"  {error.advice}", file=sys.stderr)
        return 2
    if "verbose" in asked.values:
        print(f"paceline-horovodrun: {shlex.join(['paceline', *arguments])}", file=sys.stderr)
    folder = asked.values.get("output_filename")
    typed = ["paceline-horovodrun", *(sys.argv[1:] if argv is None else argv)]
    ended = None if folder is None else lambda session: _copy_logs(session, Path(folder))
    return paceline(arguments, ended=ended, command=typed)


def run_arguments(asked: Read) -> list[str]:
    """The arguments of `paceline` that do what was asked of `horovodrun`."""
    if (config := asked.values.get("config_file")) is not None:
        typed = Read(dict(asked.values), dict(asked.variables))
        read_config(config, asked)
        asked.values |= typed.values  # what is typed counts more than what is in the file
        asked.variables |= typed.variables
    where = _where(asked)
    options = ["run", "--as", "horovod", "--oversubscribe", *where, *_bounds(asked, where)]
    options += ["--quiet"] if "quiet" in asked.values else []
    several = bool({"--hosts", "--discover"} & {*where})
    # Horovod stays on this host unless hosts are named, also where a scheduler has given more of them.
    options += ["--on", "local"] if not several and is_one_of_several() else []
    variables = horovod_environment() | asked.variables if several else asked.variables
    for name, value in variables.items():
        options += ["--env", f"{name}={value}"]
    return [*options, *_script(asked.command)]


def _bounds(asked: Read, where: list[str]) -> list[str]:
    """The options of an elastic run; `where` are those about hosts."""
    least, most = asked.values.get("min_num_proc"), asked.values.get("max_num_proc")
    if least is None and most is None:
        if "--discover" in where:
            raise UsageError("--host-discovery-script is for elastic runs.", advice="Add: --min-np 2 --max-np 8")
        return []
    least = least or asked.values.get("num_proc") or most
    several = "--hosts" in where or "--discover" in where
    if several and most is None:
        raise UsageError("elastic runs on several hosts need a largest number of processes.", advice="Add: --max-np 8")
    # On several hosts the run goes on from the disk: each commit goes there.
    saves = ["--save-every", "1"] if several else []
    return ["--elastic", f"{least}:{most}" if most is not None else str(least), *saves]


def _where(asked: Read) -> list[str]:
    """The options about processes and hosts."""
    values = asked.values
    wanted = values.get("max_num_proc", values.get("num_proc"))
    if "hosts" in values and "hostfile" in values:
        raise UsageError("-H and --hostfile exclude each other.", advice="Leave one of the two flags out.")
    listed = None
    if "hosts" in values:
        listed = hosts.parse(values["hosts"])
    elif "hostfile" in values:
        listed = hosts.read(Path(values["hostfile"]))
    if listed is None and "host_discovery_script" in values:
        return ["--discover", values["host_discovery_script"], *_ssh(values)]
    if listed is None:
        if wanted is None:
            raise UsageError("the number of processes is missing.", advice=EXAMPLE)
        return ["-n", str(wanted)]
    slots = sum(host.workers for host in listed)
    wanted = slots if wanted is None else wanted
    if wanted > slots:
        raise UsageError(
            f"-np {wanted}: the hosts have {slots} slot{'s' * (slots != 1)} in all.",
            advice=f"Type -np {slots} or less, or more slots after the hosts' names: -H a:4,b:4",
        )
    used = list(hosts.filled(listed, wanted))
    if all(host.name in HERE for host in used):
        return ["-n", str(wanted)]
    options = ["--hosts", ",".join(map(str, used))]
    interfaces = [part for part in values.get("network_interfaces", "").split(",") if part]
    if len(interfaces) > 1:
        raise UsageError(
            f"--network-interfaces {','.join(interfaces)}: Paceline uses one interface between the hosts.",
            advice=f"Type: --network-interface {interfaces[0]}",
        )
    options += ["--interface", *interfaces] if interfaces else []
    return [*options, *_ssh(values)]


def _ssh(values: dict[str, Any]) -> list[str]:
    ssh = ["ssh"]
    ssh += ["-p", str(values["ssh_port"])] if "ssh_port" in values else []
    ssh += ["-i", values["ssh_identity_file"]] if "ssh_identity_file" in values else []
    return ["--ssh", shlex.join(ssh)] if len(ssh) > 1 else []


def _script(command: list[str]) -> list[str]:
    """`python train.py …` as `paceline run` wants it: train.py …, or -m module …"""
    if not command:
        raise UsageError("the command is missing.", advice=EXAMPLE)
    program, *words = command
    if program.endswith(".py"):
        return command
    if PYTHON.fullmatch(os.path.basename(program)) is None:
        raise UsageError(
            f"the command {program!r} is not Python: Paceline's workers are Python processes.", advice=EXAMPLE
        )
    if os.path.isabs(program) and not _is_this_python(program):
        raise UsageError(
            f"{program} is another Python than the one that Paceline runs with ({sys.executable}).",
            advice="Install Paceline there, or type: paceline-horovodrun -np 2 python train.py",
        )
    while words and words[0] in ("-u", "-B"):  # workers flush each line, and the sources' cache is the user's setting
        words.pop(0)
    if not words:
        raise UsageError("python needs a script.", advice=EXAMPLE)
    if words[0] == "-m" and len(words) > 1:
        return words
    if words[0].startswith("-"):
        raise UsageError(
            f"python {words[0]}: the workers cannot be given this option of Python.",
            advice="Leave it out. (-u and -m are understood.)",
        )
    return words


def _is_this_python(program: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(program, sys.executable)
    return False


def _has_nccl() -> bool:
    """Asks torch in a process of its own: this one never imports torch."""
    code = "import torch.distributed as dist; print(dist.is_nccl_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == "True"


def _copy_logs(session: Session, folder: Path) -> None:
    """Horovod's layout of a run's output: rank.R/stdout, with standard error in the same file."""
    logs = sorted(session.record.glob("log.rank*.txt")) if session.record is not None else []
    digits = len(str(max(len(logs) - 1, 0)))
    for log in logs:
        rank = int(log.stem.removeprefix("log.rank"))
        own = folder / f"rank.{rank:0{digits}}"
        own.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, own / "stdout")


if __name__ == "__main__":
    sys.exit(main())
