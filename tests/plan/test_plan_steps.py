"""The parts of a predicted step, against sums by hand."""

from __future__ import annotations

import time
from itertools import product
from statistics import fmean

import msgspec
import pytest
from works import at_end, even, work

from paceline.plan.cluster import PRESETS, Cluster
from paceline.plan.fabric import Fabric
from paceline.plan.search import Progress, knee, search
from paceline.plan.step import Model, Setup, queued, replay
from paceline.plan.workload import Point

NODES = Cluster(hosts=64, gbit_per_s=8, goodput=1.0, latency=1e-9, local_latency=1e-9)  # 1 GB/s


def test_what_fits_behind_the_backward_is_hidden():
    # Ready at 0.5 s and 1 s, each 0.3 s: the second ends at 1.3 s.
    assert replay([(0.3, 0.5), (0.3, 1.0)], 1.0) == pytest.approx(0.3)
    # The first occupies the network until 1.3 s: the second waits.
    assert replay([(0.8, 0.5), (0.3, 1.0)], 1.0) == pytest.approx(0.6)
    assert replay([], 1.0) == 0
    assert replay([(0.1, 0.2)], 1.0) == 0


def test_nothing_overlaps_if_gradients_come_at_the_end():
    model = Model(work(0.3, 64, at_end(1e8)), Fabric(NODES))
    found = model.predict(Setup(workers=2, batch=128, base=64))
    assert found.parts["compute"] == pytest.approx(0.3)
    assert found.parts["communication"] == pytest.approx(0.1, rel=0.01)  # 2 · 1/2 · 100 MB at 1 GB/s
    assert found.efficiency == pytest.approx(0.75, rel=0.01)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert found.low < found.samples_per_s < found.high


def test_the_slowest_of_n_is_the_expected_largest_draw():
    some = work(1.0, 8, scatter=(0.9, 1.0, 1.1))
    every = [max(draw) for draw in product(some.scatter, repeat=3)]
    assert some.behind(3) == pytest.approx(fmean(every) - 1)
    assert some.behind(1) == 0
    assert some.behind(100_000) == pytest.approx(0.1)


def test_compute_between_measured_rows_is_interpolated_and_never_below_the_fixed_cost():
    points = tuple(Point(rows=r, forward=0.01 + 0.001 * r, backward=0, update=0, data=0) for r in (8, 32))
    some = msgspec.structs.replace(work(1, 8), points=points)
    for rows in (1, 8, 20, 32, 100):
        assert some.at(rows, lambda p: p.forward) == pytest.approx(0.01 + 0.001 * rows)


def test_a_pipelines_bubble_is_that_of_its_stages():
    some = work(1.2, 64, cut=1.0, blocks=8)
    found = Model(some, Fabric(PRESETS["dgx1"])).predict(
        Setup(workers=4, batch=256, strategy="pipeline", model=4, micro=8)
    )
    # 256 rows are 4.8 s of work for one worker, 1.2 s for each stage; 3 of 8 micro-batches' time is bubble.
    assert found.parts["compute"] == pytest.approx(1.2)
    assert found.parts["bubble"] == pytest.approx(1.2 * 3 / 8)


def test_a_server_is_limited_by_what_all_workers_send_to_it():
    some = work(0.01, 8, at_end(1e8))
    cluster = msgspec.structs.replace(NODES, hosts=1, slots=8, memory_gb_per_s=1)
    found = Model(some, Fabric(cluster)).predict(Setup(workers=8, batch=64, strategy="server"))
    # Eight workers' gradients in and parameters out: 1.6 GB at 1 GB/s.
    assert found.seconds == pytest.approx(1.6, rel=0.01)
    assert found.bottleneck == "the memory of the server's host"
    # On 101 hosts, a hundred share the network of the server's host, in each direction.
    wide = Fabric(msgspec.structs.replace(NODES, hosts=101))
    found = Model(some, wide).predict(Setup(workers=101, batch=808, strategy="server"))
    assert found.seconds == pytest.approx(10, rel=0.01)
    assert found.bottleneck == "the network of the server's host"
    # Two are bound by their own gradients out, and then parameters in.
    found = Model(some, Fabric(NODES)).predict(Setup(workers=2, batch=16, strategy="server"))
    assert found.seconds == pytest.approx(0.21, rel=0.01)


def test_workers_wait_for_each_other_at_the_server():
    assert queued(0.5, (0.3, 0.3), 1) == pytest.approx(1.1)
    # Never less than alone, or than the busiest station allows; never more than if all always waited for all.
    for number in range(2, 70):
        found = queued(0.5, (0.3, 0.3), number)
        assert max(1.1, number * 0.3) <= found <= 0.5 + 2 * number * 0.3
    assert queued(0.5, (0.3, 0.3), 64) == pytest.approx(queued(0.5, (0.3, 0.3), 65), rel=0.05)


def test_central_storage_averages_and_then_copies_all_parameters_to_every_worker():
    cluster = msgspec.structs.replace(NODES, hosts=1, slots=4, memory_gb_per_s=1)
    model = Model(work(0.4, 64, at_end(1e8)), Fabric(cluster))
    averaged, found = (model.predict(Setup(workers=4, batch=64, strategy=name)) for name in ("mirrored", "central"))
    # Gradients and parameters to the host, and four copies back: 600 MB at 1 GB/s.
    assert found.seconds - averaged.seconds == pytest.approx(0.6, rel=0.01)


def test_a_pipelines_link_carries_activations_and_then_their_gradients():
    some = work(0.3, 10, cut=1e8, blocks=2)
    found = Model(some, Fabric(NODES)).predict(Setup(workers=2, batch=10, strategy="pipeline", model=2))
    # 1 GB each way in 4 micro-batches: 0.05 s and 0.1 s of compute hide that much of it; 250 MB fill and 250 MB empty.
    assert found.parts["communication"] == pytest.approx(0.95 + 0.9 + 0.5, rel=0.01)
    assert "chunks" not in found.strategy


def test_sharded_workers_hold_a_part_of_parameters_gradients_and_states():
    points = tuple(
        Point(rows=r, forward=0.01 * r, backward=0.02 * r, update=0, data=0, memory=8_000 + r) for r in (8, 32)
    )
    some = msgspec.structs.replace(work(1, 8, at_end(2000.0)), points=points, parameters=2000, states=2)
    model = Model(some, Fabric(NODES))
    whole = model.memory(Setup(workers=4, batch=32, bucket=0), 8)
    part = model.memory(Setup(workers=4, batch=32, strategy="sharded", bucket=0), 8)
    assert (whole, part) == (8008, 8008 - 8000 * 3 / 4)  # parameters, gradients and two states
    # Two copies of the parameters, the gradients, and a share of the states, which lie in memory of the host.
    assert model.memory(Setup(workers=4, batch=32, strategy="central"), 8) == 8 + 2 * 2000 + 2000 + 4000 / 4


def test_sharded_workers_send_twice_the_bytes_over_gloo_and_hide_most_of_them_on_gpus():
    def exposed(cluster: Cluster, strategy: str) -> float:
        model = Model(work(1, 8, at_end(2e9)), Fabric(cluster))
        return model.predict(Setup(workers=4, batch=32, strategy=strategy, algorithm="ring")).parts["communication"]

    # Two gathers, and a whole sum of which each worker keeps a part.
    assert exposed(NODES, "sharded") == pytest.approx(2 * exposed(NODES, "mirrored"), rel=0.01)
    assert exposed(PRESETS["dgxh100"], "sharded") < exposed(PRESETS["dgxh100"], "mirrored") / 2


def test_progress_at_the_critical_batch_needs_twice_the_samples():
    progress = Progress(critical=1000, samples=5000, seen=1e-9)
    assert progress.needed(1000) == pytest.approx(10_000)
    assert progress.needed(3000) == pytest.approx(20_000)


def test_the_knee_is_where_larger_batches_stop_helping():
    some = work(0.064, 64, at_end(4e6), critical=1000.0, samples_seen=1e6)
    found = knee(Model(some, Fabric(NODES)), 64, speed=1.0)
    assert found is not None
    assert found.knee in found.batches
    least = min(found.seconds)
    assert all(t > least * 1.05 for b, t in zip(found.batches, found.seconds, strict=True) if b < found.knee)
    assert found.knee < found.batches[-1]


def test_ten_thousand_setups_take_two_seconds():
    some = work(0.5, 64, even(4e8), critical=1e5, cut=1e6, blocks=64)
    model = Model(some, Fabric(msgspec.structs.replace(PRESETS["dgxh100"], hosts=1024)))
    begun = time.process_time()
    found = search(model, goal="time", largest=8192)
    took = time.process_time() - begun
    assert found.tried > 4_000
    assert took / found.tried * 10_000 < 2.0
    assert len(found.best) == 10
    assert all(a.relative_time <= b.relative_time for a, b in zip(found.best, found.best[1:], strict=False))


def test_a_setup_that_does_not_fit_is_not_the_best():
    points = tuple(
        Point(rows=r, forward=0.01 * r, backward=0.02 * r, update=0, data=0, memory=40_000 + r) for r in (8, 32)
    )
    some = msgspec.structs.replace(work(1, 8, even(10_000)), points=points, parameters=10_000, states=2)
    cluster = msgspec.structs.replace(NODES, hosts=8, memory=60_000_000)
    assert search(Model(some, Fabric(cluster)), goal="time", largest=8).fits
    small = search(Model(some, Fabric(msgspec.structs.replace(cluster, memory=1000))), goal="time", largest=8)
    assert not small.fits
    assert small.best
