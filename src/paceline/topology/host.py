"""Discovers the facts about this machine that worker placement needs: name, cores by NUMA node, GPUs.

Reads only sysfs and procfs and imports no device library, so that a launcher starts fast. Links between devices are in
`survey`.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.settings import visible_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One logical CPU. Two logical CPUs with the same `physical` share one physical core."""

    id: int
    node: int
    physical: tuple[int, int]  # package, core


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine. `cores` are the logical CPUs that this process may use, sorted by NUMA node, siblings adjacent."""

    name: str
    cores: tuple[Core, ...]
    quota: float | None = None  # cgroup limit, in CPUs; None: no limit
    gpus: tuple[str, ...] = ()  # names as in CUDA_VISIBLE_DEVICES

    @property
    def usable_cores(self) -> int:
        """The number of threads that can run at the same time."""
        return len(self.cores) if self.quota is None else max(1, min(len(self.cores), math.ceil(self.quota)))


def discover(*, sys: Path = Path("/sys"), proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> Host:
    """The machine that this process runs on."""
    nodes = _nodes(sys)
    cores = sorted(
        (Core(id=cpu, node=nodes.get(cpu, 0), physical=_physical(sys, cpu)) for cpu in os.sched_getaffinity(0)),
        key=lambda core: (core.node, core.physical, core.id),
    )
    return Host(name=socket.gethostname(), cores=tuple(cores), quota=_quota(sys, proc), gpus=_gpus(proc=proc, dev=dev))


def parse_list(text: str) -> list[int]:
    """The numbers of a kernel list: "0-2,5" is 0, 1, 2, 5."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def format_list(numbers: Iterable[int]) -> str:
    """The kernel list of these numbers: 0, 1, 2, 5 is "0-2,5"."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def control_groups(controller: str, *, sys: Path, proc: Path) -> Iterator[Path]:
    """The folders of this process's cgroups (v1 and v2), from its own up to the root."""
    for line in read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = sys / "fs/cgroup" / (controller if controllers else "")
        here = root / path.lstrip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(root):
                break
            yield folder


def read(path: Path) -> str:
    """The text of a kernel file; an empty string if the file cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _nodes(sys: Path) -> dict[int, int]:
    found = {}
    for folder in (sys / "devices/system/node").glob("node[0-9]*"):
        for cpu in parse_list(read(folder / "cpulist")):
            found[cpu] = int(folder.name.removeprefix("node"))
    return found


def _physical(sys: Path, cpu: int) -> tuple[int, int]:
    topology = sys / f"devices/system/cpu/cpu{cpu}/topology"
    try:
        return int(read(topology / "physical_package_id")), int(read(topology / "core_id"))
    except ValueError:
        return 0, cpu


def _quota(sys: Path, proc: Path) -> float | None:
    """The smallest CPU limit of this process's cgroup and its parents."""
    found = [limit for folder in control_groups("cpu", sys=sys, proc=proc) if (limit := _limit(folder)) is not None]
    return min(found, default=None)


def _limit(folder: Path) -> float | None:
    both = read(folder / "cpu.max").split()
    if not both:
        both = [read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")]
    try:
        quota, period = float(both[0]), float(both[1])
    except (ValueError, IndexError):
        return None  # the text is "max", or the files do not exist
    return quota / period if quota > 0 and period > 0 else None


def _gpus(*, proc: Path, dev: Path) -> tuple[str, ...]:
    visible = visible_devices()
    if visible is not None:
        return visible
    listed = proc / "driver/nvidia/gpus"
    count = len(list(listed.iterdir())) if listed.is_dir() else 0
    # In a container the driver may list every GPU of the machine, while device files exist only for its own GPUs.
    files = sum(1 for path in dev.glob("nvidia[0-9]*") if re.fullmatch(r"nvidia\d+", path.name))
    return tuple(str(index) for index in range(min(count, files) if count and files else max(count, files)))
