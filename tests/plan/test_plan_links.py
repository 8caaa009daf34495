"""All-reduce on a cluster's links, against closed forms and sums by hand."""

from __future__ import annotations

import msgspec
import pytest

from paceline.comm.network import costs
from paceline.plan.cluster import PRESETS, Cluster, read_cluster
from paceline.plan.fabric import Fabric, Place
from paceline.topology.machine import Topology

DGX1 = PRESETS["dgx1"]
NO_P2P = msgspec.structs.replace(DGX1, p2p=False)
FREE = {"latency": 1e-12, "local_latency": 1e-12}  # so that only bytes cost


def place(cluster: Cluster, workers: int, devices: tuple[int, ...] = ()) -> Place:
    return Place(Fabric(cluster), workers, devices)


@pytest.mark.parametrize(("pair", "rate"), [((0, 3), 48e9), ((0, 1), 24e9)])
def test_a_pair_has_the_rate_of_its_nvlinks(pair, rate):
    cluster = msgspec.structs.replace(DGX1, **FREE)
    # The ring of two workers: each sends half of the bytes twice.
    assert place(cluster, 2, pair).all_reduce("ring", 1e9) == pytest.approx(1e9 / rate, rel=1e-3)


def test_a_pair_without_a_direct_path_goes_through_the_host():
    cluster = msgspec.structs.replace(NO_P2P, **FREE)
    found = place(cluster, 2, (1, 7)).all_reduce("ring", 1e9)
    assert found == pytest.approx(1e9 / 9.41e9, rel=0.02)  # 9.41 GB/s were measured with peer-to-peer access off


def test_eight_gpus_use_both_directions_of_every_ring():
    # One ring of double links and one of single links, each in both directions: 2 × (48 + 24) GB/s.
    cluster = msgspec.structs.replace(DGX1, **FREE)
    assert place(cluster, 8).local_rate == pytest.approx(144e9)
    assert place(cluster, 8).all_reduce("ring", 1e9) == pytest.approx(2 * 7 / 8 * 1e9 / 144e9, rel=1e-6)


def test_two_messages_between_the_sockets_share_the_interconnect():
    fabric = Fabric(NO_P2P)
    one = fabric.busy([(0, 5, 1e9)])
    assert fabric.busy([(0, 5, 1e9), (1, 6, 1e9)]) == pytest.approx(2 * one)
    assert fabric.busy([(0, 5, 1e9), (5, 0, 1e9)]) == pytest.approx(one)  # the other direction is another wire


def test_two_messages_into_one_gpu_share_its_slot():
    fabric = Fabric(PRESETS["pcie8"])
    assert fabric.busy([(0, 1, 1e9), (2, 1, 1e9)]) > 1.9 * fabric.busy([(0, 1, 1e9)])


def test_gpus_on_a_switch_share_their_ports():
    fabric = Fabric(PRESETS["dgxa100"])
    one = fabric.busy([(0, 1, 1e9)])
    assert fabric.busy([(0, 1, 1e9), (2, 3, 1e9)]) == pytest.approx(one)
    assert fabric.busy([(0, 1, 1e9), (0, 3, 1e9)]) == pytest.approx(2 * one)


@pytest.mark.parametrize("hosts", [2, 3, 4, 6, 16])
@pytest.mark.parametrize("size", [4e3, 4e5, 4e6])
def test_between_hosts_the_algorithm_is_the_one_that_the_workers_choose(hosts, size):
    cluster = Cluster(hosts=hosts, gbit_per_s=8.8, goodput=1.0, latency=100e-6, local_latency=1e-12)
    known = costs.Costs(latency=100e-6, bandwidth=1.1e9)
    wanted = min(costs.estimate(name, int(size), hosts, known) for name in costs.MODELS)
    assert place(cluster, hosts).all_reduce("hierarchical", size) == pytest.approx(wanted, rel=1e-6)


def test_a_flat_ring_waits_for_the_network_and_for_each_message():
    cluster = msgspec.structs.replace(DGX1, hosts=4, nics=1, gbit_per_s=25, goodput=1.0, latency=10e-6)
    n, size = 32, 1e9
    wanted = 2 * (n - 1) * 10e-6 + 2 * (n - 1) / n * size / (25e9 / 8)
    assert place(cluster, n).all_reduce("ring", size) == pytest.approx(wanted)


def test_hosts_sum_first_within_themselves():
    cluster = msgspec.structs.replace(DGX1, hosts=4, nics=1, gbit_per_s=25, goodput=1.0, **FREE)
    # The network carries 2 · 3/4 of the bytes; sums within a host are faster, and hidden but for the first slab.
    found = place(cluster, 32).all_reduce("hierarchical", 1e9)
    assert found == pytest.approx(1.5e9 / (25e9 / 8), rel=0.01)


def test_a_sum_by_copies_goes_to_one_gpu_of_each_socket_and_back():
    cluster = msgspec.structs.replace(DGX1, **FREE)
    # Three GPUs send to a fourth, the slowest over one NVLink; then the two heads exchange over two NVLinks.
    found = place(cluster, 8).all_reduce("copy", 1e9)
    assert found == pytest.approx(2 * (1e9 / 24e9 + 1e9 / 48e9))


def test_workers_without_gpus_share_the_memory():
    cluster = Cluster(host=Topology(), slots=4, memory_gb_per_s=10, **FREE)
    # Each step of the ring moves every worker's part through the memory: 4 · S/4, six times.
    assert place(cluster, 4).all_reduce("ring", 1e9) == pytest.approx(6 * 1e9 / 10e9)


def test_one_worker_sends_nothing():
    assert place(DGX1, 1).all_reduce("ring", 1e9) == 0
    assert place(DGX1, 1).message() == 0


def test_names_of_presets():
    cluster = read_cluster("dgx1x4@25")
    assert (cluster.hosts, cluster.workers, cluster.nics, cluster.gbit_per_s) == (4, 32, 1, 25)
    assert read_cluster("dgxh100x3750").workers == 30_000
    assert read_cluster("cpux4@2x100").network == pytest.approx(2 * 100e9 / 8 * 0.9)
