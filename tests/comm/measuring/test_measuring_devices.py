"""Copies of GPUs: on a real one where there is one; elsewhere the way through the host on a stand-in, whose streams are
the host's own order of things."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from paceline.comm.measuring import devices
from paceline.comm.measuring.plan import COPIES, Copy, MeasuringPlan, Pair, expected

PLAN = MeasuringPlan(device_bytes=1 << 22, rounds=3)


@pytest.mark.gpu
def test_a_gpu():
    reports = list(devices.measure(PLAN))
    copies = [report for report in reports if isinstance(report, Copy)]
    assert len(copies) == COPIES * torch.cuda.device_count()
    for copy in copies:
        assert len(copy.seconds) == len(copy.latency) == PLAN.rounds
        assert min(copy.seconds) > min(copy.latency) > 0
        assert copy.name == torch.cuda.get_device_name(copy.gpu)


class Stream:
    def __init__(self, gpu: int) -> None:
        self.device = SimpleNamespace(index=gpu)

    def wait_event(self, event: object) -> None:
        assert event is not None

    def record_event(self) -> object:
        return object()


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 2.0  # milliseconds


@pytest.fixture
def two_pretended(monkeypatch):
    monkeypatch.setattr(devices, "_bytes", lambda size, gpu=None: torch.ones(size, dtype=torch.uint8))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "synchronize": lambda gpu: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda gpu: (1 << 40, 1 << 40),
        "get_device_name": lambda gpu: "Pretended",
        "get_device_properties": lambda gpu: SimpleNamespace(uuid=f"0{gpu}"),
        "can_device_access_peer": lambda a, b: True,
        "device": lambda gpu: contextlib.nullcontext(),
        "stream": lambda stream: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


def test_every_path_of_every_gpu_is_reported(two_pretended):
    reports = list(devices.measure(PLAN))
    assert len(reports) == expected(PLAN, 1, 2)
    copies = [(r.gpu, r.path, r.pinned) for r in reports if isinstance(r, Copy)]
    assert copies[:COPIES] == [
        (0, "host to device", True),
        (0, "host to device", False),
        (0, "device to host", True),
        (0, "device to host", False),
        (0, "device memory", None),
    ]
    assert {r.seconds[0] for r in reports if isinstance(r, Copy)} == {0.002 / devices.LARGE}
    assert {r.latency[0] for r in reports if isinstance(r, Copy)} == {0.002 / devices.WORDS}
    pairs = [r for r in reports if isinstance(r, Pair)]
    assert {(r.a, r.b, r.direct) for r in pairs} == {(a, 1 - a, direct) for a in (0, 1) for direct in (True, False)}
    assert {r.uuids for r in pairs} == {("GPU-00", "GPU-01"), ("GPU-01", "GPU-00")}


def test_without_peer_access_only_the_way_through_the_host_is_there(two_pretended, monkeypatch):
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: False)
    assert {r.direct for r in devices.measure(PLAN) if isinstance(r, Pair)} == {False}


def test_no_gpu_no_report(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert list(devices.measure(PLAN)) == []


@pytest.mark.parametrize("size", [1, 100, 101, 350])
@pytest.mark.parametrize("direct", [True, False])
def test_all_of_it_arrives(two_pretended, monkeypatch, size, direct):
    monkeypatch.setattr(devices, "CHUNK", 100)
    data, into = torch.arange(size).to(torch.uint8), torch.full((size,), 255, dtype=torch.uint8)
    way = devices._Way(0, 1, data, into)
    for _ in range(3):
        into.fill_(255)
        way.go(direct)
        assert torch.equal(into, data)
