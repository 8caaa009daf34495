"""Which network a run over hosts uses."""

from __future__ import annotations

from paceline.launch.cluster import preflight
from paceline.launch.cluster.messages import Facts, Interface


def facts(host: str, *interfaces: Interface) -> Facts:
    return Facts(host=host, versions={}, at=0.0, digest="", has_folder=True, interfaces=interfaces, cores=2)


def names(*found: Facts) -> list[tuple[str, ...]]:
    return [tuple(each.name for each in way.interfaces) for way in preflight._ways(found, None, [])]


def test_two_agents_on_a_machine_without_a_network_use_the_loopback() -> None:
    assert names(facts("a"), facts("a")) == [("lo", "lo")]
    assert names(facts("a"), facts("b")) == []


def test_the_loopback_is_not_used_where_there_is_a_network() -> None:
    eth0, eth1 = (Interface(f"eth{number}", f"10.0.{number}.1", f"10.0.{number}.0/24", 1000) for number in range(2))
    assert names(facts("a", eth0), facts("a", eth0)) == [("eth0", "eth0")]
    assert names(facts("a", eth0), facts("b", eth1)) == [("eth0", "eth1")]
