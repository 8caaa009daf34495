"""What NCCL's log says about paths, and NVLinks that lie idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import text

from paceline.errors import UsageError
from paceline.topology import nccl_log
from paceline.topology.nccl_log import Tree, transport_of
from paceline.topology.reading import read
from paceline.topology.usage import flags, uses

DGX_1 = read(text("dgx1.txt"))


def test_a_ring_over_nvlinks() -> None:
    log = nccl_log.read(text("nccl_ring_of_8.log"))
    assert log.version == "2.28.9+cuda13.0"
    assert log.network == "Socket"
    assert [rank.gpu for rank in log.ranks] == [0, 3, 2, 1, 5, 6, 7, 4]
    assert log.ranks[1].bus == "0000:0b:00.0"
    assert len(log.routes) == 8
    assert {(route.transport, route.detail, route.channels) for route in log.routes} == {("P2P", "CUMEM", (0, 1))}
    assert [(ring.channel, ring.ranks) for ring in log.rings] == [(0, tuple(range(8))), (1, tuple(range(8)))]
    assert log.trees[3] == Tree(channel=0, rank=3, up=2, down=(4,))
    assert log.trees[0].up is None
    assert {(use.a, use.b) for use in uses(log, DGX_1)} == {
        *((0, 3), (2, 3), (1, 2), (1, 5)),
        *((5, 6), (6, 7), (4, 7), (0, 4)),
    }
    assert flags(log, DGX_1) == ()


def test_nvlinks_that_lie_idle_are_flagged_with_the_variable() -> None:
    log = nccl_log.read(text("nccl_p2p_off.log"))
    assert log.variables == {"NCCL_P2P_DISABLE": "1"}
    [flag] = flags(log, DGX_1)
    assert (flag.a, flag.b, flag.kind, flag.transport) == (0, 3, "NV2", "SHM")
    assert flag.variable == "NCCL_P2P_DISABLE=1"
    assert flag.message.startswith("GPU0 and GPU3 have 2 NVLinks but communicate through host memory")
    assert flag.advice == "unset NCCL_P2P_DISABLE"


def test_a_pair_without_nvlinks_is_not_flagged() -> None:
    log = nccl_log.read(text("nccl_p2p_off.log").replace("1[3]", "1[7]").replace("nvmlDev 3", "nvmlDev 7"))
    assert [(use.a, use.b, use.transport) for use in uses(log, DGX_1)] == [(0, 7, "SHM")]
    assert flags(log, DGX_1) == ()


@pytest.mark.parametrize("name", ["dgx1.xml", "dgx1.txt"])
def test_an_older_log_has_buses_in_its_brackets(name: str) -> None:
    log = nccl_log.read(text("nccl_older.log"))
    assert [rank.bus for rank in log.ranks] == ["0000:06:00.0", "0000:0b:00.0"]
    assert [(route.transport, route.detail) for route in log.routes] == [("SHM", "direct"), ("SHM", "direct")]
    found = flags(log, read(text(name)))
    if name.endswith("xml"):
        assert [(flag.a, flag.b, flag.variable) for flag in found] == [(0, 3, "NCCL_P2P_LEVEL=LOC")]
    else:
        # CUDA's numbers are 0 on both, and a matrix knows no buses: nothing is said rather than something wrong.
        assert found == ()


def test_buses_in_their_order_are_gpus_in_theirs() -> None:
    """A matrix knows no buses; but a log that has as many as there are GPUs can be matched."""
    buses = ["6000", "7000", "a000", "b000", "85000", "86000", "89000", "8a000"]
    lines = [
        f"h:1:1 [0] NCCL INFO Channel 00 : {rank}[{buses[rank]}] -> {(rank + 1) % 8}[{buses[(rank + 1) % 8]}] via SHM/x"
        for rank in range(8)
    ]
    found = uses(nccl_log.read("\n".join(lines)), DGX_1)
    assert [(use.a, use.b) for use in found] == [(0, 1), (0, 7), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]


def test_a_bus_may_be_short() -> None:
    """On some machines all GPUs hang on bus 0."""
    log = nccl_log.read("h:1:1 [0] NCCL INFO Channel 00 : 0[c0] -> 1[160] via P2P/IPC\n")
    assert [(rank.gpu, rank.bus) for rank in log.ranks] == [(None, "0000:00:0c.0"), (None, "0000:00:16.0")]


def test_a_pair_is_as_slow_as_its_slower_way() -> None:
    lines = "h:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n" + ROUTE
    assert [use.transport for use in uses(nccl_log.read(lines), DGX_1)] == ["SHM"]
    assert [(flag.a, flag.b) for flag in flags(nccl_log.read(lines), DGX_1)] == [(0, 1)]


def test_two_hosts() -> None:
    log = nccl_log.read(text("nccl_two_hosts.log"))
    assert [(rank.host, rank.gpu) for rank in log.ranks] == [("node1", 0), ("node1", 1), ("node2", 0), ("node2", 1)]
    ways = {(route.source, route.target): (route.transport, route.detail) for route in log.routes}
    assert ways == {
        (0, 1): ("P2P", "IPC/read"),
        (1, 2): ("NET", "IB/0/GDRDMA"),
        (2, 3): ("P2P", "IPC/read"),
        (3, 0): ("NET", "IB/0/GDRDMA"),
    }
    assert log.trees[0].down == (1, 2)
    assert flags(log, DGX_1) == (), "what crosses the network between hosts has no NVLink to use"


def test_over_the_network_within_a_host() -> None:
    lines = [
        "h:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.",
        "h:1:1 [0] NCCL INFO NCCL_SHM_DISABLE set by environment to 1.",
        "h:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0",
    ]
    [flag] = flags(nccl_log.read("\n".join(lines)), DGX_1)
    assert flag.transport == "NET"
    assert flag.variable == "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1"
    assert flag.advice == "unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE"


ROUTE = "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n"


@pytest.mark.parametrize(
    ("before", "variable", "advice"),
    [
        ("", "", "NCCL_DEBUG_SUBSYS"),
        ("h:1:1 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to NVL\n", "", "nvidia-smi topo -p2p"),
        ("h:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 0.\n", "", "nvidia-smi topo -p2p"),
        ("h:1:1 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to 0\n", "NCCL_P2P_LEVEL=0", "unset NCCL_P2P_LEVEL"),
        ("h:1:1 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. Sorry.\n", "", "ACS"),
    ],
)
def test_what_forbids_it_is_named_only_where_the_log_shows_it(before: str, variable: str, advice: str) -> None:
    [flag] = flags(nccl_log.read(before + ROUTE), DGX_1)
    assert flag.variable == variable
    assert advice in flag.advice


@pytest.mark.parametrize(
    ("via", "transport", "detail"),
    [
        ("P2P/CUMEM", "P2P", "CUMEM"),
        ("P2P/direct pointer/read", "P2P", "direct pointer/read"),
        ("P2P/IPC", "P2P", "IPC"),
        ("SHM/direct/direct", "SHM", "direct/direct"),
        ("direct shared memory", "SHM", "direct"),
        ("NET/Socket/0", "NET", "Socket/0"),
        ("NET/IB/3/GDRDMA", "NET", "IB/3/GDRDMA"),
        ("COLLNET/x", "other", "COLLNET/x"),
    ],
)
def test_transports(via: str, transport: str, detail: str) -> None:
    assert transport_of(via) == (transport, detail)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("", "The log has no NCCL lines"),
        ("epoch 1 loss 2.3\n", "The log has no NCCL lines"),
        ("h:1:1 [0] NCCL INFO Bootstrap : Using eth0\n", "none shows a path between ranks"),
    ],
)
def test_a_log_that_says_nothing(log: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        nccl_log.read(log)
    assert "NCCL_DEBUG=INFO" in refused.value.advice


@given(st.data())
def test_a_log_that_was_cut_anywhere_is_no_bug(data: st.DataObject) -> None:
    whole = text("nccl_two_hosts.log") + text("nccl_older.log") + text("nccl_p2p_off.log")
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    try:
        log = nccl_log.read(whole[start:end])
    except UsageError:
        return
    flags(log, DGX_1)
