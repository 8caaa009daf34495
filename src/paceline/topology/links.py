"""How two devices are joined: the kinds that `nvidia-smi topo -m` made known, and what each usually carries.

A rate here is what a good copy of a large piece reaches one way, not what is printed on the box: `bandwidth`
holds measured links against it.
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

# Closest first. NVLinks come before all of them.
PCIE = ("PIX", "PXB", "PHB", "NODE", "SYS")

# Names that older versions had for two of them.
OLDER = {"SOC": "SYS", "PSB": "PIX"}

# GB/s of one lane one way, by generation of PCIe.
_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
# What of it arrives: PCIe 3 × 16 across two sockets gives 9.4 of 15.8 GB/s.
_SHARE = {"PIX": 0.84, "PXB": 0.82, "PHB": 0.72, "NODE": 0.66, "SYS": 0.6}
# GB/s of one NVLink one way, by generation; the second is that of V100, the third of A100, the fourth of H100.
_NVLINK = {1: 18.0, 2: 24.0, 3: 24.0, 4: 24.0, 5: 48.0, 6: 96.0}
_USUAL_NVLINK = 24.0


def known(kind: str) -> bool:
    """Is it a kind of the legend?"""
    return kind == "X" or kind in PCIE or nvlinks(kind) > 0


def nvlinks(kind: str) -> int:
    """How many NVLinks: 2 of "NV2", 0 of "SYS"."""
    return int(kind[2:]) if re.fullmatch(r"NV[1-9]\d{0,2}", kind) else 0


def usual_rate(
    kind: str, *, nvlink: int | None = None, generation: int | None = None, width: int | None = None, p2p: bool = True
) -> float:
    """GB/s one way. Without the generations: an NVLink as most machines have it, and PCIe 3 × 16. Without
    peer-to-peer access everything goes through the host's memory, NVLinks or not."""
    if (count := nvlinks(kind)) and p2p:
        return round(count * _NVLINK.get(nvlink or 0, _USUAL_NVLINK), 1)
    share = min(_SHARE.get(kind, _SHARE["SYS"]), 1.0 if p2p else _SHARE["SYS"])
    return round(share * _LANE.get(generation or 3, _LANE[3]) * (width or 16), 1)


def in_words(kind: str) -> str:
    """For a sentence: `2 NVLinks`, `one PCIe switch`."""
    if count := nvlinks(kind):
        return f"{count} NVLink{'' if count == 1 else 's'}"
    return {
        "PIX": "one PCIe switch",
        "PXB": "several PCIe switches",
        "PHB": "a PCIe host bridge",
        "NODE": "several host bridges of one NUMA node",
        "SYS": "the interconnect between NUMA nodes",
    }[kind]
