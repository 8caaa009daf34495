"""What the machine is made of, as far as placing workers needs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.settings import asked_threads, visible_devices
from paceline.topology import discover
from paceline.topology.host import parse_list


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two NUMA nodes of two cores of two threads, numbered as Linux does: siblings are four apart."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", cpus + "\n")
    for cpu in range(8):
        write(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", str(cpu % 4 // 2))
        write(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/core_id", str(cpu % 4))
    return tmp_path


def found(machine: Path):  # type: ignore[no-untyped-def]
    return discover(sys=machine / "sys", proc=machine / "proc", dev=machine / "dev")


def test_cores_come_node_by_node_with_siblings_side_by_side(machine: Path) -> None:
    host = found(machine)
    assert [core.id for core in host.cores] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert [core.node for core in host.cores] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({core.physical for core in host.cores}) == 4
    assert host.usable_cores == 8


def test_only_cores_that_this_process_may_use_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 6})
    assert [core.id for core in found(machine).cores] == [2, 6]


def test_a_quota_of_the_control_group_counts(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "0::/user/me\n")
    write(machine / "sys/fs/cgroup/user/me/cpu.max", "max 100000\n")
    write(machine / "sys/fs/cgroup/user/cpu.max", "150000 100000\n")
    host = found(machine)
    assert host.quota == 1.5
    assert host.usable_cores == 2


def test_a_quota_of_the_older_control_groups_counts(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "3:cpu,cpuacct:/me\n2:memory:/me\n")
    write(machine / "sys/fs/cgroup/cpu/me/cpu.cfs_quota_us", "400000\n")
    write(machine / "sys/fs/cgroup/cpu/me/cpu.cfs_period_us", "100000\n")
    assert found(machine).quota == 4.0


def test_gpus_come_from_the_driver_or_the_device_files(machine: Path) -> None:
    assert found(machine).gpus == ()
    for index in range(2):
        write(machine / f"dev/nvidia{index}", "")
    write(machine / "dev/nvidiactl", "")
    assert found(machine).gpus == ("0", "1")
    for bus in range(8):
        (machine / f"proc/driver/nvidia/gpus/0000:{bus}").mkdir(parents=True)
    assert found(machine).gpus == ("0", "1"), "a container sees all in the driver's list, its own as files"


def test_the_users_choice_of_gpus_is_kept(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    assert found(machine).gpus == ("3", "GPU-abc")


@pytest.mark.parametrize(
    ("text", "devices"), [(None, None), ("", ()), ("-1", ()), ("1, 0", ("1", "0")), ("2,-1,3", ("2",))]
)
def test_visible_devices_are_read_as_cuda_does(text: str | None, devices: tuple[str, ...] | None) -> None:
    assert visible_devices({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == devices


@pytest.mark.parametrize(("text", "threads"), [("", None), ("4", 4), ("4,2", 4), ("0", None), ("many", None)])
def test_the_users_own_thread_count_is_read(text: str, threads: int | None) -> None:
    assert asked_threads({"OMP_NUM_THREADS": text}) == threads


def test_kernel_lists() -> None:
    assert parse_list("0-2,5\n") == [0, 1, 2, 5]
    assert parse_list("") == []


def test_this_machine_is_found() -> None:
    host = discover()
    assert host.name
    assert {core.id for core in host.cores} == os.sched_getaffinity(0)
