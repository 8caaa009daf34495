"""This machine, and made-up ones, as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.topology import networks, pci, processors
from paceline.topology.host import discover, format_list, parse_list
from paceline.topology.machine import Gpu, from_json, to_json
from paceline.topology.survey import survey


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def device(sys: Path, way: str, *, node: int = 0) -> str:
    """A PCI device at the end of a way from the host bridge down."""
    folder = sys / "devices" / way
    write(folder / "numa_node", str(node))
    link = sys / "bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder.name


@pytest.fixture
def sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages of two cores, two NUMA nodes, 8 MiB of L3 each."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sys = tmp_path / "sys"
    write(sys / "devices/system/cpu/online", "0-3")
    for cpu in range(4):
        folder = sys / f"devices/system/cpu/cpu{cpu}"
        write(folder / "topology/physical_package_id", str(cpu // 2))
        write(folder / "topology/core_id", str(cpu % 2))
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "32K", str(cpu)), (3, "Unified", "8M", "0-1" if cpu < 2 else "2-3")]
        ):
            cache = folder / f"cache/index{index}"
            for name, value in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                write(cache / name, value)
    for node in range(2):
        folder = sys / f"devices/system/node/node{node}"
        write(folder / "cpulist", "0-1" if node == 0 else "2-3")
        write(folder / "meminfo", f"Node {node} MemTotal:       1024 kB")
        write(folder / "distance", "10 21" if node == 0 else "21 10")
    write(tmp_path / "proc/cpuinfo", "processor : 0\nmodel name\t: A Fast  CPU\n")
    write(tmp_path / "proc/self/cgroup", "0::/job")
    write(sys / "fs/cgroup/job/memory.max", "max")
    write(sys / "fs/cgroup/memory.max", "4096")
    return sys


def test_packages_caches_nodes_and_limits(sys: Path) -> None:
    proc = sys.parent / "proc"
    topology = survey(sys=sys, proc=proc, dev=sys.parent / "dev")
    assert [(package.model, package.cores, package.cpus) for package in topology.packages] == [
        ("A Fast CPU", 2, "0-1"),
        ("A Fast CPU", 2, "2-3"),
    ]
    assert [(cache.level, cache.kind, cache.size, cache.cpus) for cache in topology.caches] == [
        (1, "data", 32 * 1024, ("0", "1", "2", "3")),
        (3, "unified", 8 * 2**20, ("0-1", "2-3")),
    ]
    assert [(node.id, node.cpus, node.memory, node.distances) for node in topology.numa] == [
        (0, "0-1", 2**20, (10, 21)),
        (1, "2-3", 2**20, (21, 10)),
    ]
    assert (topology.limits.cpus, topology.limits.memory) == ("0-2", 4096)


def test_older_control_groups_say_no_limit_with_a_huge_number(sys: Path) -> None:
    proc = sys.parent / "proc"
    write(proc / "self/cgroup", "4:memory:/job")
    write(sys / "fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712")
    assert processors.limits(discover(sys=sys, proc=proc, dev=sys), sys, proc).memory is None
    write(sys / "fs/cgroup/memory/job/memory.limit_in_bytes", "1048576")
    assert processors.limits(discover(sys=sys, proc=proc, dev=sys), sys, proc).memory == 2**20


def test_how_far_devices_are_apart(sys: Path) -> None:
    switch = "pci0000:10/0000:10:01.0/0000:11:00.0"
    first = device(sys, f"{switch}/0000:12:00.0/0000:13:00.0")
    second = device(sys, f"{switch}/0000:12:01.0/0000:14:00.0")
    cascaded = device(sys, f"{switch}/0000:12:02.0/0000:15:00.0/0000:16:00.0/0000:17:00.0")
    behind_bridge = device(sys, f"{switch}/0000:12:03.0/0000:18:00.0/0000:19:00.0")
    same_bridge = device(sys, "pci0000:10/0000:10:02.0/0000:20:00.0")
    same_node = device(sys, "pci0000:30/0000:30:01.0/0000:31:00.0")
    other_node = device(sys, "pci0000:80/0000:80:01.0/0000:81:00.0", node=1)
    port = device(sys, "pci0000:80/0000:80:01.0/0000:81:00.1", node=1)
    others = (second, cascaded, same_bridge, same_node, other_node)
    assert [pci.kind_between(first, other, sys=sys) for other in others] == ["PIX", "PXB", "PHB", "NODE", "SYS"]
    assert [pci.kind_between(other, first, sys=sys) for other in others] == ["PIX", "PXB", "PHB", "NODE", "SYS"]
    assert pci.kind_between(first, behind_bridge, sys=sys) == "PXB"
    assert pci.kind_between(other_node, port, sys=sys) == "PIX"
    assert pci.kind_between(first, "0000:ff:00.0", sys=sys) is None


def test_infiniband_comes_first_and_cards_before_what_is_built_on_them(sys: Path) -> None:
    gpu = device(sys, "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0")
    card = device(sys, "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0")
    plain = device(sys, "pci0000:80/0000:80:01.0/0000:81:00.0", node=1)
    for name, rate, state in (("mlx5_10", "200 Gb/sec (4X HDR)", "4: ACTIVE"), ("mlx5_2", "100 Gb/sec", "1: DOWN")):
        port = sys / f"class/infiniband/{name}/ports/1"
        write(port / "rate", rate)
        write(port / "state", state)
        write(port / "link_layer", "InfiniBand")
        (sys / f"class/infiniband/{name}/device").symlink_to(sys / "bus/pci/devices" / card)
    write(sys / "bus/pci/devices" / card / "net/ib0/type", "32")
    for name, speed, bus in (("ib0", "200000", card), ("eth0", "25000", plain), ("lo", "0", ""), ("br0", "-1", "")):
        write(sys / f"class/net/{name}/speed", speed)
        write(sys / f"class/net/{name}/operstate", "up")
        write(sys / f"class/net/{name}/type", "772" if name == "lo" else "1")
        if bus:
            (sys / f"class/net/{name}/device").symlink_to(sys / "bus/pci/devices" / bus)
    found = networks.nics(sys, (Gpu(index=0, bus=gpu),))
    assert [(nic.label, nic.name, nic.kind) for nic in found] == [
        ("NIC0", "mlx5_2", "infiniband"),
        ("NIC1", "mlx5_10", "infiniband"),
        ("NIC2", "eth0", "ethernet"),
    ]
    assert [(nic.gbit_per_s, nic.up, nic.node) for nic in found] == [(100, False, 0), (200, True, 0), (25, True, 1)]
    assert found[0].interfaces == ("ib0",)
    ways = {path.to: path.kind for path in found[0].paths}
    assert ways == {"GPU0": "PIX", "NIC1": "PIX", "NIC2": "SYS"}


def test_a_container_has_only_virtual_interfaces(sys: Path) -> None:
    for name, kind, state in (("lo", "772", "unknown"), ("eth0", "1", "up"), ("ifb0", "1", "down")):
        write(sys / f"class/net/{name}/type", kind)
        write(sys / f"class/net/{name}/operstate", state)
    [nic] = networks.nics(sys, ())
    assert (nic.name, nic.kind, nic.gbit_per_s, nic.paths) == ("eth0", "virtual", None, ())


def test_this_machine_is_found_and_survives_json() -> None:
    topology = survey()
    assert topology.packages
    assert sum(package.cores for package in topology.packages) >= 1
    assert set(parse_list(topology.limits.cpus)) == os.sched_getaffinity(0)
    assert from_json(to_json(topology)) == topology


def test_lists_of_cpus_and_back() -> None:
    assert format_list([5, 0, 1, 2, 2]) == "0-2,5"
    assert format_list([]) == ""
    assert parse_list(format_list(range(40))) == list(range(40))
