"""The checks of `paceline doctor`: each tests one property of this machine, and says what to type if the test fails.

A check never raises: an unexpected exception becomes a failed check.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from paceline import __version__
from paceline.doctor.dependencies import OPTIONAL, REQUIRED, versions
from paceline.settings import launcher_environment, thread_environment
from paceline.topology import Host, discover
from paceline.units import size

MIB = 2**20
SMALL_SHARED_MEMORY = 256 * MIB
FEW_DESCRIPTORS = 1024
ZYGOTE = "paceline.launch.zygote.process"
SEGMENT = re.compile(r"(?:paceline|torch)[-_](\d+)[-_]")  # name of a shared-memory segment, with its creator's PID

# Runs in a separate process, because the command line never imports torch and a broken torch may crash.
PROBE = """
import json, torch, torch.distributed as dist
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
has = lambda backend: dist.is_available() and getattr(dist, f"is_{backend}_available")()
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda or torch.version.hip or "",
    "gpus": [torch.cuda.get_device_name(index) for index in range(count)],
    "backends": [backend for backend in ("gloo", "nccl", "mpi") if has(backend)],
}))
"""


class Check(msgspec.Struct, kw_only=True):
    """The result of one check. `prevents`: if this check fails, no run can start."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    prevents: bool = False


class TorchFacts(msgspec.Struct, kw_only=True):
    """The installed torch: its version, devices and backends, or the error of its import."""

    version: str = ""
    cuda: str = ""
    gpus: list[str] = []
    backends: list[str] = []
    error: str = ""


def ask_torch() -> TorchFacts:
    """Imports torch in another process, and returns the facts about it."""
    try:
        asked = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, check=False)
        if asked.returncode == 0:
            return msgspec.json.decode(asked.stdout.splitlines()[-1], type=TorchFacts)
        error = asked.stderr.strip().splitlines()[-1:] or [f"exit code {asked.returncode}"]
        return TorchFacts(error=error[0])
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError, IndexError) as error_found:
        return TorchFacts(error=str(error_found))


def examine(records: Path) -> list[Check]:
    """Runs all checks, the basic ones first. `records` is the folder for records."""
    torch, host = ask_torch(), discover()
    checks: list[Callable[[], Check]] = [
        python,
        packages,
        lambda: optional_packages(host),
        lambda: torch_works(torch),
        lambda: devices(torch, host),
        lambda: backends(torch),
        lambda: cores(host),
        lambda: threads(host),
        shared_memory,
        loopback,
        host_name,
        control_channel,
        descriptors,
        launcher,
        lambda: record_folder(records),
        leftovers,
    ]
    return [_carefully(check) for check in checks]


def told(name: str, found: str, advice: str = "", *, prevents: bool = False) -> Check:
    """A check that was well, unless there is something to type."""
    return Check(name=name, ok=not advice, found=found, advice=advice, prevents=prevents)


def _carefully(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        name = getattr(check, "__name__", "check").replace("_", " ")
        return Check(name=name, ok=False, found=f"the check failed: {type(error).__name__}: {error}")


def python() -> Check:
    advice = "" if sys.version_info >= (3, 11) else "Install Python 3.11 or newer."
    return told("python", f"{platform.python_version()}, paceline {__version__}", advice, prevents=True)


def packages() -> Check:
    found = versions(REQUIRED)
    missing = [name for name, version in found.items() if not version]
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if missing:
        there, advice = f"{there}; missing: {', '.join(missing)}", f"pip install {' '.join(missing)}"
    return told("packages", there, advice if missing else "", prevents=True)


def optional_packages(host: Host) -> Check:
    """A missing package fails the check only if this machine needs the package: the extra `gpu` on a machine with
    GPUs."""
    found = versions(package.name for package in OPTIONAL)
    missing = [package for package in OPTIONAL if not found[package.name]]
    wanted = [package for package in missing if package.extra == "gpu" and host.gpus]
    each = [f"{name} {version}" for name, version in found.items() if version]
    each += [f"{package.name} missing: {package.unlocks}" for package in missing]
    extras = ",".join(dict.fromkeys(package.extra for package in missing))
    return Check(
        name="optional packages",
        ok=not wanted,
        found="; ".join(each),
        advice=f"pip install 'paceline[{extras}]'" if missing else "",
    )


def torch_works(torch: TorchFacts) -> Check:
    if torch.error:
        return told("torch", torch.error, "pip install torch", prevents=True)
    built = f"built for CUDA {torch.cuda}" if torch.cuda else "built for CPU"
    return told("torch", f"imports; {built}", prevents=True)


def devices(torch: TorchFacts, host: Host) -> Check:
    if host.gpus and not torch.gpus and not torch.error:
        return told(
            "devices",
            f"{len(host.gpus)} GPU in the machine, but torch can use none",
            "Install a torch built for CUDA (see pytorch.org), or update the driver, which nvidia-smi shows.",
        )
    found = ", ".join(f"{torch.gpus.count(name)} × {name}" for name in dict.fromkeys(torch.gpus))
    return told("devices", found or "no GPU: workers compute on the CPU")


def backends(torch: TorchFacts) -> Check:
    found = ", ".join(torch.backends) or "none"
    if torch.error:
        return told("backends", "unknown: torch does not import", "pip install torch")
    if "gloo" not in torch.backends:
        advice = "Install a torch with distributed support: this torch has no gloo."
        return told("backends", found, advice, prevents=True)
    if torch.gpus and "nccl" not in torch.backends:
        return told(
            "backends", found, "Install a torch with nccl: without nccl, GPUs communicate over gloo, which is slow."
        )
    return told("backends", found)


def cores(host: Host) -> Check:
    found = f"{len(host.cores)} of {os.cpu_count()} for this process"
    if host.quota is not None and host.quota < len(host.cores):
        return told(
            "cores",
            f"{found}, but its control group limits it to the CPU time of {host.quota:g}",
            f"Use at most -n {host.usable_cores}, or raise the limit: docker run --cpus={len(host.cores)}",
        )
    return told("cores", found)


def threads(host: Host) -> Check:
    set_here, most = thread_environment(), len(host.cores)
    odd = [name for name, value in set_here.items() if not value.isdigit() or not 1 <= int(value) <= most]
    found = ", ".join(f"{name}={value}" for name, value in set_here.items()) or "not set: each worker gets its share"
    return told("threads", found, f"unset {' '.join(odd)}   (use --threads instead)" if odd else "")


def shared_memory(folder: Path = Path("/dev/shm")) -> Check:
    if not folder.is_dir():
        return told("shared memory", f"no {folder}", f"mount -t tmpfs tmpfs {folder}")
    usage, advice = shutil.disk_usage(folder), ""
    if usage.free < SMALL_SHARED_MEMORY:
        advice = "Enlarge it: workers exchange batches through it. In a container: docker run --shm-size=2g"
    return told("shared memory", f"{size(usage.free)} free of {size(usage.total)}", advice)


def loopback() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(5)
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                peer, _ = server.accept()
                with peer:
                    client.sendall(b"paceline")
                    if peer.recv(8) != b"paceline":
                        raise OSError("the bytes sent did not arrive")
    except OSError as error:
        advice = "Enable the loopback device: ip link set lo up; or allow local connections in the firewall."
        return told("ports", f"127.0.0.1 cannot be used: {error}", advice, prevents=True)
    return told("ports", "ports of 127.0.0.1 can be opened and reached", prevents=True)


def host_name() -> Check:
    name = socket.gethostname()
    try:
        return told("host name", f"{name} is {socket.gethostbyname(name)}")
    except OSError:
        return told("host name", f"{name} has no address", f"echo '127.0.0.1 {name}' | sudo tee -a /etc/hosts")


def control_channel() -> Check:
    import zmq

    curve = bool(zmq.has("curve"))
    found = f"zmq {zmq.zmq_version()}, {'with' if curve else 'without'} CURVE authentication"
    advice = "" if curve else "pip install --force-reinstall --only-binary :all: pyzmq"
    return told("control channel", found, advice, prevents=True)


def descriptors() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < FEW_DESCRIPTORS
    shown = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} per process"
    wanted = FEW_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, 65536)
    return told("open files", shown, f"ulimit -n {wanted}" if few else "")


def launcher() -> Check:
    found = launcher_environment()
    if not found:
        return told("other launchers", "no variables of another launcher")
    return told(
        "other launchers",
        ", ".join(f"{name}={value}" for name, value in found.items()),
        f"unset {' '.join(found)}   (`paceline run` ignores them; a script with paceline.Mirrored() under plain "
        "python waits for other workers)",
    )


def record_folder(records: Path) -> Check:
    existing = next(folder for folder in (records.absolute(), *records.absolute().parents) if folder.is_dir())
    if not os.access(existing, os.W_OK):
        advice = "Change to another folder, or name a writable folder: --record DIR"
        return told("record folder", f"{existing} cannot be written", advice, prevents=True)
    free = shutil.disk_usage(existing).free
    advice = "" if free > 100 * MIB else "Free some space, or name a folder on another disk: --record DIR"
    return told("record folder", f"{records}: {size(free)} free", advice, prevents=True)


def leftovers(shared: Path = Path("/dev/shm")) -> Check:
    """Zygotes whose launcher has ended, and shared-memory segments whose creator has ended."""
    import psutil

    advice = []
    orphans = []
    for process in psutil.process_iter(["pid", "ppid", "cmdline"]):
        if ZYGOTE in (process.info["cmdline"] or ()) and process.info["ppid"] == 1:
            orphans.append(str(process.info["pid"]))
    if orphans:
        advice.append(f"kill {' '.join(orphans)}")
    segments = []
    for path in sorted(shared.iterdir()) if shared.is_dir() else ():
        made_by = SEGMENT.match(path.name)
        if made_by and not psutil.pid_exists(int(made_by[1])) and path.stat().st_uid == os.getuid():
            segments.append(path)
    if segments:
        advice.append(f"rm {' '.join(map(str, segments[:4]))}{' …' if len(segments) > 4 else ''}")
    found = f"{len(orphans)} processes and {len(segments)} shared-memory segments of ended runs"
    return told("leftovers", found if advice else "none", "; ".join(advice))
