"""GPUs and the links between them, asked of the driver through nvidia-ml-py.

Every question may go unanswered (an older driver, a virtual machine, a card without the feature), so each is
asked by itself and its answer may be None. Without nvidia-ml-py or a driver there are no GPU facts.
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

_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # of the nearest common ancestor
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}  # of NVLink, by the driver's number
_MOST_NVLINKS = 36
_TO_A_SWITCH = 2
# Written out: nvidia-ml-py has had a tuple under the name of the first.
_P2P_READ, _P2P_OK = 0, 0


@contextlib.contextmanager
def driver() -> Iterator[Any | None]:
    """nvidia-ml-py, connected; None where it is not installed or finds no driver."""
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
    """One GPU while it is being asked."""

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        self.nvml, self.index, self.handle = nvml, index, handle
        info = self.ask("nvmlDeviceGetPciInfo")
        self.bus = pci.bus_name(_text(info.busId)) if info is not None else ""
        self.ends: dict[str, int] = {}  # NVLinks that are up, by the bus of the device that they end at
        self.switches: set[str] = set()  # those of these devices that may be switches
        self.nvlink: int | None = None  # their generation
        self._follow_nvlinks()

    def ask(self, question: str, *more: Any) -> Any:
        """The driver's answer, or None."""
        return ask(self.nvml, question, self.handle, *more)

    def _follow_nvlinks(self) -> None:
        for number in range(_MOST_NVLINKS):
            # No answer: no such link. One that is there may follow, so none ends the search.
            if not self.ask("nvmlDeviceGetNvLinkState", number):
                continue
            self.nvlink = self.nvlink or _GENERATIONS.get(self.ask("nvmlDeviceGetNvLinkVersion", number) or 0)
            remote = self.ask("nvmlDeviceGetNvLinkRemotePciInfo", number)
            kind = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", number)
            bus = pci.bus_name(_text(remote.busId)) if remote is not None else ""
            self.ends[bus] = self.ends.get(bus, 0) + 1
            if kind in (_TO_A_SWITCH, None):  # None: an old driver, which does not say
                self.switches.add(bus)

    def nvlinks_to(self, other: _Card, gpus: set[str]) -> int:
        """NVLinks to another card: straight, else through switches that both hang on."""
        straight = self.ends.get(other.bus, 0) if other.bus else 0
        return straight or min(self._switched(gpus), other._switched(gpus))

    def _switched(self, gpus: set[str]) -> int:
        return sum(count for bus, count in self.ends.items() if bus in self.switches - gpus)


def ask(nvml: Any, question: str, *arguments: Any) -> Any:
    """One question; None where this driver, library or card cannot answer it."""
    function = getattr(nvml, question, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def read_gpus(nvml: Any, *, sys: Path) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """Every GPU that the driver shows, and how each pair is joined."""
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
        # Not asked of the driver, which on some machines names the node of the GPU's own memory.
        node=pci.node_of(card.bus, sys=sys) if card.bus else None,
        cpus=pci.cpus_of(card.bus, sys=sys) if card.bus else "",
        memory=int(memory.total) if memory is not None else None,
        # The most that card and slot can do: an idle card shows a lower generation.
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
    """Older versions of the library answer in bytes."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace").rstrip("\0")
    return str(answer or "")
