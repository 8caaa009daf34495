"""Plan and verdict of `paceline bandwidth`: what is measured, what seconds come to, and which links are flagged."""

from __future__ import annotations

import math
from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm.measuring.plan import OPS, Collective, Copy, Pair, elements
from paceline.errors import UsageError
from paceline.topology import Core, Host
from paceline.topology.links import host_rate, usual_rate
from paceline.topology.machine import Gpu, Link, Topology
from paceline.trials.bandwidth import series as trials
from paceline.trials.bandwidth.verdict import TOO_LITTLE, busbw_factor, judge, matrices, spread
from paceline.units import size

SECONDS = st.floats(1e-6, 10.0)
SAMPLES = st.lists(SECONDS, min_size=1, max_size=9)


def host(cores: int = 4, gpus: int = 0) -> Host:
    return Host(
        name="here",
        cores=tuple(Core(id=i, node=0, physical=(0, i)) for i in range(cores)),
        gpus=tuple(str(i) for i in range(gpus)),
    )


def two_gpus(kind: str = "NV2", *, p2p: bool | None = True) -> Topology:
    cards = [
        Gpu(index=i, uuid=f"GPU-{i}", node=i, pcie_generation=4, pcie_width=16, nvlink_generation=2) for i in range(2)
    ]
    rate = usual_rate(kind, nvlink=2, generation=4, width=16, p2p=p2p is not False)
    return Topology(devices=tuple(cards), links=(Link(a=0, b=1, kind=kind, gb_per_s=rate, p2p=p2p),))


def collective(op: str = "all_reduce", workers: int = 2, size: int = 1 << 20, **more: object) -> Collective:
    fields = {"backend": "memory", "algorithm": "copied", "seconds": [1e-3], "copy": [5e-4]} | more
    return Collective(op=op, workers=workers, bytes=size, **fields)  # type: ignore[arg-type]


def copy(gb_per_s: float, **more: object) -> Copy:
    fields = {"gpu": 0, "uuid": "GPU-0", "path": "host to device", "pinned": True} | more
    return Copy(name="A GPU", bytes=10**9, seconds=[1 / gb_per_s], latency=[1e-5], **fields)  # type: ignore[arg-type]


def gpu_pair(gb_per_s: float, **more: object) -> Pair:
    fields = {"a": 0, "b": 1, "backend": "peer to peer", "direct": True, "uuids": ("GPU-0", "GPU-1")} | more
    seconds = [1 / gb_per_s]
    return Pair(between="gpus", bytes=10**9, one_way=seconds, both_ways=seconds, latency=[1e-5], **fields)  # type: ignore[arg-type]


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "factors"),
    [
        ("all_reduce", {2: 1.0, 4: 1.5, 8: 1.75}),
        ("all_gather", {2: 0.5, 4: 0.75, 8: 0.875}),
        ("reduce_scatter", {2: 0.5, 4: 0.75, 8: 0.875}),
        ("all_to_all", {2: 0.5, 4: 0.75, 8: 0.875}),
        ("broadcast", {2: 1.0, 4: 1.0, 8: 1.0}),
    ],
)
def test_busbw_is_algbw_times_what_the_bus_carries(op, factors):
    for workers, factor in factors.items():
        [rate] = judge([collective(op, workers)], Topology(), workers=workers).collectives
        assert rate.algbw == pytest.approx((1 << 20) / 1e-3 / 1e9)
        assert rate.busbw == pytest.approx(factor * rate.algbw)


@given(op=st.sampled_from(OPS), workers=st.integers(2, 64), seconds=SAMPLES, copies=SAMPLES)
def test_a_collective_is_its_median_round(op, workers, seconds, copies):
    report = collective(op, workers, seconds=seconds, copy=copies)
    [rate] = judge([report], Topology(), workers=workers).collectives
    assert min(seconds) == rate.low <= rate.seconds <= rate.high == max(seconds)
    assert rate.algbw * rate.seconds == pytest.approx(report.bytes / 1e9)
    assert rate.busbw == pytest.approx(rate.algbw * busbw_factor(op, workers))
    assert rate.share == pytest.approx(median(copies) / rate.seconds)


def test_the_copy_limit_counts_every_op_once_and_every_worker():
    found = [
        collective("all_reduce", copy=[1e-3]),
        collective("all_reduce", algorithm="in place", copy=[1e-3]),
        collective("broadcast", copy=[3e-3]),
        collective("broadcast", size=64, copy=[1e-6]),
    ]
    small, large = judge(found, Topology(), workers=2).copy_limits
    assert (small.bytes, large.bytes) == (64, 1 << 20)
    assert large.gb_per_s == pytest.approx(2 * (1 << 20) / 2e-3 / 1e9)


def test_spread_is_that_of_the_usual_collective():
    steady, shaken = collective(seconds=[1.0, 1.1]), collective(seconds=[1.0, 9.0])
    assert spread(judge([steady, steady, shaken], Topology(), workers=2)) == pytest.approx(0.1)
    assert spread(judge([], Topology(), workers=2)) == 0.0


@given(seconds=SECONDS, both=SECONDS, latency=SECONDS)
def test_both_ways_count_both_directions(seconds, both, latency):
    report = Pair(
        between="workers",
        a=0,
        b=1,
        backend="gloo",
        direct=False,
        bytes=1000,
        one_way=[seconds],
        both_ways=[both],
        latency=[latency],
    )
    [pair] = judge([report], Topology(), workers=2).pairs
    assert pair.gb_per_s == pytest.approx(1e-6 / seconds)
    assert pair.both_ways_gb_per_s == pytest.approx(2e-6 / both)
    assert pair.latency == latency
    assert pair.usual is None


def test_the_matrix_of_workers_is_the_same_both_ways_round_and_that_of_gpus_is_not():
    verdict = judge([gpu_pair(40.0), gpu_pair(30.0, a=1, b=0, uuids=("GPU-1", "GPU-0"))], two_gpus(), workers=2)
    names, one_way, _, _ = matrices(verdict.pairs)
    assert names == [0, 1]
    assert (one_way[0][1], one_way[1][0]) == (pytest.approx(40.0), pytest.approx(30.0))
    assert math.isnan(one_way[0][0])


# -- flags -------------------------------------------------------------------------------------------------------------


@given(gb_per_s=st.floats(0.1, 100.0), path=st.sampled_from(["host to device", "device to host"]))
def test_a_slot_that_gives_less_than_its_kind_is_flagged(gb_per_s, path):
    verdict = judge([copy(gb_per_s, path=path)], two_gpus(), workers=2)
    usual = host_rate(4, 16)
    assert verdict.copies[0].usual == usual
    assert bool(verdict.flags) == (verdict.copies[0].gb_per_s < TOO_LITTLE * usual)
    for flag in verdict.flags:
        assert path in flag.what
        assert flag.share == pytest.approx(gb_per_s / usual)
        assert "pcie.link.width.current" in flag.look_at
        assert "NUMA node (0)" in flag.look_at


@given(gb_per_s=st.floats(0.1, 100.0), kind=st.sampled_from(["NV1", "NV2", "PIX", "PHB", "SYS"]))
def test_a_link_that_gives_less_than_its_kind_is_flagged(gb_per_s, kind):
    topology = two_gpus(kind)
    verdict = judge([gpu_pair(gb_per_s)], topology, workers=2)
    [pair] = verdict.pairs
    assert (pair.kind, pair.usual) == (kind, topology.links[0].gb_per_s)
    assert bool(verdict.flags) == (pair.gb_per_s < TOO_LITTLE * pair.usual)
    for flag in verdict.flags:
        assert kind in flag.what
        assert ("nvlink" in flag.look_at) == kind.startswith("NV")


def test_pageable_memory_and_the_device_itself_are_promised_nothing():
    slow = [copy(0.1, pinned=False), copy(0.1, path="device memory", pinned=None)]
    assert judge(slow, two_gpus(), workers=2).flags == []
    assert judge([copy(0.1), gpu_pair(0.1)], Topology(), workers=2).flags == []  # nothing is known of the machine


def test_the_way_through_the_host_counts_where_it_is_the_only_one():
    staged = {"backend": "through the host", "direct": False}
    fine = usual_rate("NV2", generation=4, width=16, p2p=False)
    assert judge([gpu_pair(48.0), gpu_pair(0.1, **staged)], two_gpus(), workers=2).flags == []
    assert judge([gpu_pair(fine, **staged)], two_gpus(p2p=False), workers=2).flags == []
    [flag] = judge([gpu_pair(0.1, **staged)], two_gpus(p2p=False), workers=2).flags
    assert "topo -p2p" in flag.look_at


def test_gpus_are_told_apart_by_their_identifiers():
    # CUDA's number 0 is the driver's number 1.
    verdict = judge(
        [copy(1.0, gpu=0, uuid="GPU-1"), gpu_pair(48.0, a=0, b=1, uuids=("GPU-1", "GPU-0"))], two_gpus(), workers=2
    )
    assert verdict.copies[0].gpu == 1
    assert (verdict.pairs[0].a, verdict.pairs[0].b) == (1, 0)
    assert verdict.flags[0].what.startswith("GPU1")


@pytest.mark.parametrize(
    ("rate", "low", "high"),
    [
        (host_rate(3, 16), 12, 13.5),  # what pinned copies are known to reach
        (host_rate(4, 16), 24, 27),
        (host_rate(5, 16), 50, 56),
        (host_rate(4, 8), 12, 13.5),
        (usual_rate("NV2", nvlink=2), 46, 50),
        (usual_rate("NV12", nvlink=3), 255, 280),
        (usual_rate("NV18", nvlink=4), 370, 400),
        (usual_rate("SYS", generation=3, p2p=False), 9, 10),
        (usual_rate("NV18", generation=5, p2p=False), 36, 39),
    ],
)
def test_usual_rates_are_those_that_people_see(rate, low, high):
    assert low <= rate <= high


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_gpus_are_measured_by_one_worker_and_the_rest_by_all():
    devices, workers = trials.plan(host(gpus=2), workers=2)
    assert (devices.workers, devices.plan.device_bytes, devices.plan.ops) == (1, 256 << 20, ())
    assert devices.expected == 2 * 5 + 2 * 2
    assert (workers.workers, workers.plan.device_bytes, workers.plan.ops) == (2, 0, OPS)
    assert workers.plan.backends == ("memory", "gloo", "nccl")
    assert workers.plan.sizes[0] == 1 << 10
    assert workers.plan.sizes[-1] == 256 << 20
    assert {b // a for a, b in zip(workers.plan.sizes, workers.plan.sizes[1:], strict=False)} == {4}


def test_only_what_was_asked_for():
    [alone] = trials.plan(host(gpus=1), workers=2, parts=("collectives",), ops=("broadcast",), sizes=(64,))
    assert (alone.plan.pair_bytes, alone.plan.ops, alone.plan.sizes) == (0, ("broadcast",), (64,))
    assert alone.expected == 2  # one GPU is not enough for NCCL
    assert [trial.name for trial in trials.plan(host(gpus=1), workers=2, parts=("devices",))] == ["devices"]
    assert trials.plan(host(), workers=2, quick=True)[0].plan.sizes == trials.QUICK_SIZES


def test_how_many_workers():
    assert trials.default_workers(host(cores=1)) == 2
    assert trials.default_workers(host(cores=16, gpus=1)) == 2
    assert trials.default_workers(host(cores=16, gpus=8)) == 8
    trials.check(host(cores=1), workers=2)
    for number, cores in ((1, 4), (0, 4), (5, 4)):
        with pytest.raises(UsageError):
            trials.check(host(cores), workers=number)
    trials.check(host(4), workers=5, oversubscribe=True)
    with pytest.raises(UsageError, match="would take too long"):
        trials.check(host(4), workers=17, oversubscribe=True)


def test_what_cannot_be_measured_here():
    with pytest.raises(UsageError, match="no GPU"):
        trials.check(host(), workers=2, parts=("devices",))
    trials.check(host(gpus=1), workers=1, parts=("devices",))
    with pytest.raises(UsageError, match="NCCL needs one GPU per worker"):
        trials.check(host(gpus=1), workers=2, backends=("nccl",))
    with pytest.raises(UsageError, match="of memory"):
        trials.check(host(), workers=2, sizes=(1 << 30,), memory=8 << 30)


@given(st.lists(st.integers(2, 24), min_size=1, max_size=5))
def test_sizes_as_people_write_them(powers):
    def written(power: int) -> str:
        return f"{1 << power % 10}{('', 'K', 'MiB')[power // 10]}"

    text = ",".join(written(power) for power in powers)
    assert trials.parse_sizes(text) == tuple(sorted({1 << power for power in powers}))
    assert all(trials.parse_sizes(size(1 << power)) == (1 << power,) for power in powers)


def test_a_stretch_of_sizes_goes_by_fourfolds():
    assert trials.parse_sizes("1K-64k") == (1 << 10, 1 << 12, 1 << 14, 1 << 16)
    assert trials.parse_sizes("1K-3K,1M") == (1 << 10, 1 << 20)


@pytest.mark.parametrize("text", ["", "1X", "K", "-1", "1K,", "0", "3", "100G", "4M-1K", "-"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="--sizes"):
        trials.parse_sizes(text)


def test_names_are_checked_and_put_in_order():
    assert trials.parse_names("broadcast, all_reduce", "--ops", OPS) == ("all_reduce", "broadcast")
    with pytest.raises(UsageError, match="no 'reduce'"):
        trials.parse_names("all_reduce,reduce", "--ops", OPS)


@given(size=st.integers(4, 1 << 28), workers=st.integers(2, 64))
def test_every_worker_gets_the_same_part_of_a_size(size, workers):
    numel = elements(size, workers)
    assert numel % workers == 0
    assert numel * 4 <= max(size, 4 * workers)
    assert numel * 4 > size - 4 * workers


def test_a_torn_last_line_was_being_written(tmp_path):
    whole = msgspec.json.encode(collective()) + b"\n"
    (tmp_path / "measurements.jsonl").write_bytes(whole + whole[:20])
    assert trials.read_reports(tmp_path / "measurements.jsonl") == [collective()]
    assert trials.read_reports(tmp_path / "nothing.jsonl") == []
