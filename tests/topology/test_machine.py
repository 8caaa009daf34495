"""A topology is JSON and back, and cannot be changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from machines import text, whole

from paceline.errors import UsageError
from paceline.topology import smi_matrix
from paceline.topology.machine import SCHEMA, Topology, from_json, to_json


@given(whole)
def test_json_and_back(topology: Topology) -> None:
    assert from_json(to_json(topology)) == topology


def test_keys_that_others_added_are_passed_over() -> None:
    topology = smi_matrix.read(text("dgx1.txt"))
    document = json.loads(to_json(topology)) | {"verb": "topo", "choice": None}
    document["devices"][0]["colour"] = "green"
    assert from_json(json.dumps(document)) == topology


def test_it_cannot_be_changed() -> None:
    topology = smi_matrix.read(text("dgx1.txt"))
    with pytest.raises(AttributeError):
        topology.host = "elsewhere"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        topology.links[0].kind = "SYS"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ('{"devices": []}', "not a topology"),
        ("[1]", "not a topology"),
        ('{"devices": [],\n"links": [],\n"numa": [}', "line 3"),
        ('{"devices": [{"index": "two"}], "links": [], "numa": []}', r"\$\.devices\[0\]\.index"),
        (f'{{"schema": {SCHEMA + 1}, "devices": [], "links": [], "numa": []}}', f"schema {SCHEMA + 1}"),
    ],
)
def test_json_that_is_no_topology_is_refused(document: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        from_json(document)
    assert refused.value.advice


def test_a_link_is_found_from_both_sides() -> None:
    topology = smi_matrix.read(text("dgx1.txt"))
    assert topology.link(3, 0) == topology.link(0, 3)
    assert topology.link(0, 3).kind == "NV2"  # type: ignore[union-attr]
    assert topology.link(0, 0) is None
    assert topology.link(0, 99) is None
