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
# What of it arrives between two GPUs: copies within a switch reach 13 GB/s on 16 lanes of PCIe 3 and 26 of PCIe 4.
_SHARE = {"PIX": 0.84, "PXB": 0.82, "PHB": 0.72, "NODE": 0.66, "SYS": 0.6}
# Through the host's memory: 9.4 GB/s are seen on PCIe 3, 20 to 22 on PCIe 4, 37 on PCIe 5.
_THROUGH_HOST = 0.6
# And between a GPU and pinned memory of the host: 12 to 13 GB/s are seen on PCIe 3, 25 to 26 on 4, 50 to 55 on 5.
_TO_HOST = 0.82
# GB/s of one NVLink one way, by generation, as copies reach them: two of V100's carry 48, twelve of A100's 260,
# eighteen of H100's 376. Of the newest, what their rates on paper let expect.
_NVLINK = {1: 18.0, 2: 24.0, 3: 22.0, 4: 21.0, 5: 42.0, 6: 84.0}
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
    share = min(_SHARE.get(kind, _SHARE["SYS"]), 1.0 if p2p else _THROUGH_HOST)
    return round(share * _slot(generation or 3, width or 16), 1)


def host_rate(generation: int, width: int) -> float:
    """GB/s one way between a GPU in such a slot and pinned memory of the host."""
    return round(_TO_HOST * _slot(generation, width), 1)


def _slot(generation: int, width: int) -> float:
    return _LANE.get(generation, _LANE[max(_LANE)]) * width


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
