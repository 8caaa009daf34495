"""Which GPUs are chosen, held against trying everything."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import drawn, machine, text

from paceline.errors import UsageError
from paceline.topology.choosing import choose
from paceline.topology.machine import Topology
from paceline.topology.reading import read
from paceline.topology.rings import best_ring, upper_bound


def worth_of(topology: Topology, order: tuple[int, ...]) -> tuple[float, float]:
    """The plainest way to say it: the links of a ring in this order."""
    if len(order) == 1:
        return 0.0, 0.0
    pairs = [(order[0], order[1])] if len(order) == 2 else list(zip(order, order[1:] + order[:1], strict=True))
    rates = [topology.link(a, b).gb_per_s for a, b in pairs]  # type: ignore[union-attr]
    return min(rates), round(sum(rates), 6)


def best_by_trying(topology: Topology, k: int) -> tuple[int, ...]:
    nodes = {gpu.index: gpu.node for gpu in topology.devices}

    def value(chosen: tuple[int, ...]) -> tuple[float, float, int, tuple[int, ...]]:
        ring = max(worth_of(topology, (chosen[0], *rest)) for rest in itertools.permutations(chosen[1:]))
        return *ring, -len({nodes[index] for index in chosen}), tuple(-index for index in chosen)

    return max(itertools.combinations(sorted(nodes), k), key=value)


@given(drawn(most=6), st.data())
def test_no_other_choice_is_better(topology: Topology, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(topology.devices)))
    choice = choose(topology, k)
    assert choice.devices == best_by_trying(topology, k)
    assert sorted(choice.ring) == list(choice.devices)
    if k > 1:
        slowest, _ = worth_of(topology, choice.ring)
        assert choice.gb_per_s == slowest
        everything = [worth_of(topology, (choice.ring[0], *rest)) for rest in itertools.permutations(choice.ring[1:])]
        assert worth_of(topology, choice.ring) == max(everything)


@given(drawn(least=2, most=9))
def test_no_ring_is_worth_more_than_the_bound(topology: Topology) -> None:
    indices = [gpu.index for gpu in topology.devices]
    rates = [[0.0 if a == b else topology.link(a, b).gb_per_s for b in indices] for a in indices]  # type: ignore[union-attr]
    ring = best_ring(rates)
    assert ring.worth <= upper_bound(rates)
    assert sorted(ring.order) == indices


@given(st.integers(3, 6), st.data())
def test_no_other_ring_is_better(count: int, data: st.DataObject) -> None:
    """With all sorts of rates, a quick look is seldom enough."""
    rates = [[0.0] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            rates[a][b] = rates[b][a] = float(data.draw(st.integers(1, 12)))

    def worth(order: tuple[int, ...]) -> tuple[float, float]:
        carried = [rates[a][b] for a, b in zip(order, order[1:] + order[:1], strict=True)]
        return min(carried), sum(carried)

    ring = best_ring(rates)
    assert ring.worth == worth(ring.order) == max(worth((0, *rest)) for rest in itertools.permutations(range(1, count)))


@pytest.mark.parametrize("name", ["dgx1.txt", "dgx1.xml"])
def test_dgx_1(name: str) -> None:
    topology = read(text(name))
    two = choose(topology, 2)
    assert two.devices == (0, 3)
    assert "2 NVLinks" in two.why
    assert choose(topology, 2, among=(1, 4, 7)).devices == (4, 7), "never 1,7, which have no NVLink"
    four = choose(topology, 4)
    assert four.devices == (0, 1, 2, 3), "one quad, on one socket"
    assert four.kind == "NV1"
    eight = choose(topology, 8)
    assert eight.kind == "NV2", "there is a ring of double NVLinks through all"
    assert eight.ring == (0, 3, 2, 1, 5, 6, 7, 4)


def test_on_a_switch_the_numa_node_decides_then_the_numbers() -> None:
    topology = read(text("dgx_a100.txt"))
    assert choose(topology, 2).devices == (0, 1)
    assert choose(topology, 2, among=(1, 2, 3)).devices == (2, 3)
    assert choose(topology, 3).devices == (0, 1, 2)


def test_on_pcie_a_switch_then_a_socket() -> None:
    topology = read(text("pcie_two_sockets.txt"))
    assert choose(topology, 2).devices == (0, 1)
    assert choose(topology, 4).devices == (0, 1, 2, 3)
    assert "SYS" in choose(topology, 5).why


def test_without_peer_to_peer_access_a_link_is_worth_less() -> None:
    import msgspec

    from paceline.topology.links import usual_rate

    assert usual_rate("NV2", p2p=False) < usual_rate("PIX")
    topology = read(text("dgx1.txt"))
    links = tuple(
        msgspec.structs.replace(link, p2p=False, gb_per_s=usual_rate(link.kind, p2p=False)) for link in topology.links
    )
    why = choose(msgspec.structs.replace(topology, links=links), 2).why
    assert "no peer-to-peer access" in why


@pytest.mark.parametrize("k", [1, 4, 8, 13, 24])
def test_many_gpus_get_a_good_choice(k: int) -> None:
    """Three boxes of eight behind switches of their own; the last one has the widest links."""
    count = 24
    kinds = [
        ["SYS" if a // 8 != b // 8 else "NV8" if a // 8 == 2 else "NV4" for b in range(count)] for a in range(count)
    ]
    choice = choose(machine(kinds, [index // 8 for index in range(count)]), k)
    assert len(choice.devices) == k
    if 1 < k <= 8:
        assert choice.kind == "NV8"
        assert "best found" in choice.why


@pytest.mark.parametrize(("k", "says"), [(0, "Cannot choose 0 GPUs"), (9, "there are only 8"), (-1, "--choose 1")])
def test_what_cannot_be_chosen_is_said(k: int, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose(read(text("dgx1.txt")), k)
    assert says in str(refused.value)


def test_where_there_are_no_gpus_it_is_said() -> None:
    with pytest.raises(UsageError, match="there are none"):
        choose(Topology(), 1)
