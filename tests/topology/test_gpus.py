"""GPUs as a driver tells of them. There is none here: a stand-in answers like one, and refuses like one."""

from __future__ import annotations

import sys as system
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from machines import text

from paceline.topology.gpus import driver, read_gpus
from paceline.topology.links import nvlinks
from paceline.topology.pci import bus_name
from paceline.topology.reading import read

SWITCH, GPU = 2, 0
BUSES = ["06", "07", "0A", "0B", "85", "86", "89", "8A"]
LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


class NVMLError(Exception):
    """As nvidia-ml-py's: everything that goes wrong is one of these."""


class Driver:
    """A DGX-1, or eight GPUs on a switch. `silent` are the questions that it cannot answer."""

    NVMLError = NVMLError

    def __init__(self, *, switched: bool = False, silent: frozenset[str] = frozenset(), as_bytes: bool = False) -> None:
        self._matrix = read(text("dgx1.txt"))
        self._silent, self._as_bytes = silent, as_bytes
        self._ends: list[list[tuple[str, int]]] = []
        for gpu in range(8):
            ends = []
            for other in range(8):
                link = self._matrix.link(gpu, other)
                if link and not switched:
                    ends += [(f"00000000:{BUSES[other]}:00.0", GPU)] * nvlinks(link.kind)
            self._ends.append(ends or [(f"00000000:C{number % 6}:00.0", SWITCH) for number in range(12)])

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "_silent"):

            def refuse(*arguments: Any) -> Any:
                raise NVMLError("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def _said(self, text: str) -> Any:
        return text.encode() if self._as_bytes else text

    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, gpu: int) -> Any:
        return self._said("Tesla V100-SXM2-16GB")

    def nvmlDeviceGetUUID(self, gpu: int) -> Any:
        return self._said(f"GPU-{gpu}")

    def nvmlDeviceGetPciInfo(self, gpu: int) -> Any:
        return SimpleNamespace(busId=self._said(f"00000000:{BUSES[gpu]}:00.0"))

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return SimpleNamespace(total=16 * 2**30)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: int) -> int:
        return 3

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: int) -> int:
        return 16

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        if link >= len(self._ends[gpu]) + 1:
            raise NVMLError("Invalid Argument")
        return int(link != 0)  # the first one is down

    def nvmlDeviceGetNvLinkVersion(self, gpu: int, link: int) -> int:
        return 2

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> Any:
        return SimpleNamespace(busId=self._said(self._ends[gpu][link - 1][0]))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:
        return self._ends[gpu][link - 1][1]

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        return LEVELS["PIX" if a // 2 == b // 2 else "NODE" if a // 4 == b // 4 else "SYS"]

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:
        assert index == 0
        return 0 if nvlinks(self._matrix.link(a, b).kind) else 3  # type: ignore[union-attr]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_dgx_1(as_bytes: bool, tmp_path: Path) -> None:
    gpus, links = read_gpus(Driver(as_bytes=as_bytes), sys=tmp_path)
    matrix = read(text("dgx1.txt"))
    assert [(link.a, link.b, link.kind) for link in links] == [(link.a, link.b, link.kind) for link in matrix.links]
    assert {link.p2p for link in links} == {True, False}
    assert [gpu.bus for gpu in gpus[:3]] == ["0000:06:00.0", "0000:07:00.0", "0000:0a:00.0"]
    gpu = gpus[0]
    assert (gpu.name, gpu.uuid, gpu.memory) == ("Tesla V100-SXM2-16GB", "GPU-0", 16 * 2**30)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.nvlinks, gpu.nvlink_generation) == (3, 16, 6, 2)


def test_a_switch(tmp_path: Path) -> None:
    _, links = read_gpus(Driver(switched=True), sys=tmp_path)
    assert {link.kind for link in links} == {"NV12"}


QUESTIONS = sorted(name for name in vars(Driver) if name.startswith("nvml"))


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_that_the_driver_cannot_answer_leaves_the_others(question: str, tmp_path: Path) -> None:
    gpus, links = read_gpus(Driver(silent=frozenset({question})), sys=tmp_path)
    if question in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert (gpus, links) == ((), ())
        return
    assert (len(gpus), len(links)) == (8, 28)
    nvlinks_need = ("nvmlDeviceGetPciInfo", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo")
    if question not in (*nvlinks_need, "nvmlDeviceGetTopologyCommonAncestor"):
        assert [link.kind for link in links] == [link.kind for link in read(text("dgx1.txt")).links]


def test_a_driver_that_answers_almost_nothing(tmp_path: Path) -> None:
    silent = frozenset(QUESTIONS) - {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
    gpus, links = read_gpus(Driver(silent=silent), sys=tmp_path)
    assert len(gpus) == 8
    assert {link.kind for link in links} == {"SYS"}


def test_a_library_that_does_not_know_a_question_yet(tmp_path: Path) -> None:
    class Older(Driver):
        def __getattribute__(self, name: str) -> Any:
            if name == "nvmlDeviceGetNvLinkVersion":
                raise AttributeError(name)
            return super().__getattribute__(name)

    gpus, _ = read_gpus(Older(), sys=tmp_path)
    assert gpus[0].nvlink_generation is None
    assert gpus[0].nvlinks == 6


def test_without_the_library_or_a_driver_there_are_no_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(system.modules, "pynvml", None)
    with driver() as nvml:
        assert nvml is None
    monkeypatch.delitem(system.modules, "pynvml")
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('Driver Not Loaded')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with driver() as nvml:
        assert nvml is None
    monkeypatch.delitem(system.modules, "pynvml")


@pytest.mark.parametrize(
    ("text", "bus"),
    [
        ("00000000:0A:00.0", "0000:0a:00.0"),
        ("0000:0a:00.0", "0000:0a:00.0"),
        ("a000", "0000:0a:00.0"),
        ("1000065010", "1000065010"),
        ("10001a000", "1000:1a:00.0"),
        ("1e0", "0000:00:1e.0"),
        ("c0", "0000:00:0c.0"),
        ("0a:00", "0000:0a:00.0"),
        ("nowhere", "nowhere"),
    ],
)
def test_a_bus_has_one_spelling(text: str, bus: str) -> None:
    assert bus_name(text) == bus
