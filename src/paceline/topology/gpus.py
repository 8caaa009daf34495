"""Queries the driver for GPUs and the links between them, through nvidia-ml-py.

Any query may fail (an older driver, a virtual machine, a card without the feature), so each query is made separately
and may return None. Without nvidia-ml-py or a driver there are no GPUs in the result.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.topology import links as kinds
from paceline.topology import pci
from paceline.topology.machine import Gpu, Link

_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # by NVML's common-ancestor level
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}  # NVLink generation, by NVML's version number
_MOST_NVLINKS = 36  # links to query per GPU
_TO_A_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
# Literal values, because some versions of nvidia-ml-py define NVML_P2P_CAPS_INDEX_READ as a tuple.
_P2P_READ, _P2P_OK = 0, 0


@contextlib.contextmanager
def driver() -> Iterator[Any | None]:
    """The initialized pynvml module; None if nvidia-ml-py is not installed or finds no driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


class _Card:
    """One GPU during the query."""

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        self.nvml, self.index, self.handle = nvml, index, handle
        info = self.ask("nvmlDeviceGetPciInfo")
        self.bus = pci.bus_name(_text(info.busId)) if info is not None else ""
        self.ends: dict[str, int] = {}  # number of active NVLinks, by bus address of the remote device
        self.switches: set[str] = set()  # bus addresses of remote devices that may be switches
        self.nvlink: int | None = None  # NVLink generation
        self._follow_nvlinks()

    def ask(self, question: str, *more: Any) -> Any:
        """The driver's answer about this GPU, or None."""
        return ask(self.nvml, question, self.handle, *more)

    def _follow_nvlinks(self) -> None:
        for number in range(_MOST_NVLINKS):
            # An inactive or missing link does not end the search: active links may follow.
            if not self.ask("nvmlDeviceGetNvLinkState", number):
                continue
            self.nvlink = self.nvlink or _GENERATIONS.get(self.ask("nvmlDeviceGetNvLinkVersion", number) or 0)
            remote = self.ask("nvmlDeviceGetNvLinkRemotePciInfo", number)
            kind = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", number)
            bus = pci.bus_name(_text(remote.busId)) if remote is not None else ""
            self.ends[bus] = self.ends.get(bus, 0) + 1
            if kind in (_TO_A_SWITCH, None):  # None: an old driver does not report the type
                self.switches.add(bus)

    def nvlinks_to(self, other: _Card, gpus: set[str]) -> int:
        """The number of NVLinks to another card: direct links, else links through switches."""
        direct = self.ends.get(other.bus, 0) if other.bus else 0
        return direct or min(self._switched(gpus), other._switched(gpus))

    def _switched(self, gpus: set[str]) -> int:
        return sum(count for bus, count in self.ends.items() if bus in self.switches - gpus)


def ask(nvml: Any, question: str, *arguments: Any) -> Any:
    """The result of one NVML query; None if this driver, library or card does not support the query."""
    function = getattr(nvml, question, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def read_gpus(nvml: Any, *, sys: Path) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """Every GPU that the driver reports, and the link of each pair of GPUs."""
    cards = []
    for index in range(ask(nvml, "nvmlDeviceGetCount") or 0):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            cards.append(_Card(nvml, index, handle))
    gpus = {card.bus for card in cards}
    return (
        tuple(_describe(card, sys) for card in cards),
        tuple(_join(a, b, gpus, sys) for a, b in itertools.combinations(cards, 2)),
    )


def _describe(card: _Card, sys: Path) -> Gpu:
    memory = card.ask("nvmlDeviceGetMemoryInfo")
    return Gpu(
        index=card.index,
        name=_text(card.ask("nvmlDeviceGetName")),
        uuid=_text(card.ask("nvmlDeviceGetUUID")),
        bus=card.bus,
        # From sysfs: on some machines the driver reports the node of the GPU's own memory instead.
        node=pci.node_of(card.bus, sys=sys) if card.bus else None,
        cpus=pci.cpus_of(card.bus, sys=sys) if card.bus else "",
        memory=int(memory.total) if memory is not None else None,
        # The maximum of card and slot, because an idle card reports a lower current generation.
        pcie_generation=card.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=card.ask("nvmlDeviceGetCurrPcieLinkWidth") or card.ask("nvmlDeviceGetMaxPcieLinkWidth"),
        nvlinks=sum(card.ends.values()),
        nvlink_generation=card.nvlink,
    )


def _join(a: _Card, b: _Card, gpus: set[str], sys: Path) -> Link:
    if count := a.nvlinks_to(b, gpus):
        kind = f"NV{count}"
    else:
        level = _LEVELS.get(ask(a.nvml, "nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle))
        kind = level or pci.kind_between(a.bus, b.bus, sys=sys) or "SYS"
    status = ask(a.nvml, "nvmlDeviceGetP2PStatus", a.handle, b.handle, _P2P_READ)
    p2p = None if status is None else status == _P2P_OK
    generations = [card.ask("nvmlDeviceGetMaxPcieLinkGeneration") for card in (a, b)]
    widths = [card.ask("nvmlDeviceGetCurrPcieLinkWidth") for card in (a, b)]
    rate = kinds.usual_rate(
        kind,
        nvlink=a.nvlink,
        generation=min(filter(None, generations), default=None),
        width=min(filter(None, widths), default=None),
        p2p=p2p is not False,
    )
    return Link(a=a.index, b=b.index, kind=kind, gb_per_s=rate, p2p=p2p)


def _text(answer: Any) -> str:
    """The answer as str: older versions of nvidia-ml-py return bytes."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace").rstrip("\0")
    return str(answer or "")
