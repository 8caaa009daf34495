"""The kinds of links between devices, named as in `nvidia-smi topo -m`, and the usual bandwidth of each kind.

A rate here is the bandwidth that a large copy usually reaches in one direction, not the nominal bandwidth. `paceline
bandwidth` compares measured links with these rates.
"""

from __future__ import annotations

import re

LEGEND = {
    "X": "the device itself",
    "NV#": "# NVLinks, bonded",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges, no host bridge",
    "PHB": "a PCIe host bridge (usually the CPU)",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the interconnect between NUMA nodes",
}

# Closest first. NVLinks are closer than all of these kinds.
PCIE = ("PIX", "PXB", "PHB", "NODE", "SYS")

# Names of two kinds in older versions of nvidia-smi.
OLDER = {"SOC": "SYS", "PSB": "PIX"}

# GB/s of one lane in one direction, by PCIe generation.
_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
# The fraction that a copy between two GPUs reaches: within a switch 13 GB/s on 16 lanes of PCIe 3, 26 GB/s on PCIe 4.
_SHARE = {"PIX": 0.84, "PXB": 0.82, "PHB": 0.72, "NODE": 0.66, "SYS": 0.6}
# The fraction through host memory: measured 9.4 GB/s on PCIe 3, 20 to 22 GB/s on PCIe 4, 37 GB/s on PCIe 5.
_THROUGH_HOST = 0.6
# The fraction between a GPU and pinned host memory: measured 12 to 13 GB/s on PCIe 3, 25 to 26 GB/s on PCIe 4, 50 to 55
# GB/s on PCIe 5.
_TO_HOST = 0.82
# GB/s of one NVLink in one direction, by generation, as copies reach it: 2 links of a V100 carry 48 GB/s, 12 of an A100
# 260 GB/s, 18 of an H100 376 GB/s. Generations 5 and 6 are estimated from their nominal rates.
_NVLINK = {1: 18.0, 2: 24.0, 3: 22.0, 4: 21.0, 5: 42.0, 6: 84.0}
_USUAL_NVLINK = 24.0  # GB/s, if the generation is unknown


def known(kind: str) -> bool:
    """Whether the legend contains this kind."""
    return kind == "X" or kind in PCIE or nvlinks(kind) > 0


def nvlinks(kind: str) -> int:
    """The number of NVLinks: 2 for "NV2", 0 for "SYS"."""
    return int(kind[2:]) if re.fullmatch(r"NV[1-9]\d{0,2}", kind) else 0


def usual_rate(
    kind: str, *, nvlink: int | None = None, generation: int | None = None, width: int | None = None, p2p: bool = True
) -> float:
    """The usual GB/s in one direction. Defaults: 24 GB/s per NVLink, and PCIe 3 × 16. Without peer-to-peer access all
    data goes through host memory, even if there are NVLinks."""
    if (count := nvlinks(kind)) and p2p:
        return round(count * _NVLINK.get(nvlink or 0, _USUAL_NVLINK), 1)
    share = min(_SHARE.get(kind, _SHARE["SYS"]), 1.0 if p2p else _THROUGH_HOST)
    return round(share * _slot(generation or 3, width or 16), 1)


def host_rate(generation: int, width: int) -> float:
    """The usual GB/s in one direction between a GPU in such a slot and pinned host memory."""
    return round(_TO_HOST * _slot(generation, width), 1)


def _slot(generation: int, width: int) -> float:
    return _LANE.get(generation, _LANE[max(_LANE)]) * width


def in_words(kind: str) -> str:
    """The kind as a phrase: `2 NVLinks`, `one PCIe switch`."""
    if count := nvlinks(kind):
        return f"{count} NVLink{'' if count == 1 else 's'}"
    return {
        "PIX": "one PCIe switch",
        "PXB": "several PCIe switches",
        "PHB": "a PCIe host bridge",
        "NODE": "several host bridges of one NUMA node",
        "SYS": "the interconnect between NUMA nodes",
    }[kind]
