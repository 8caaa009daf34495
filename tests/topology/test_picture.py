"""The drawing is an SVG that holds every device."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from machines import text, whole

from paceline.topology import nccl_log
from paceline.topology.choosing import choose
from paceline.topology.machine import Gpu, Topology
from paceline.topology.picture import DARK, LIGHT, Look, draw, narrow
from paceline.topology.reading import read
from paceline.topology.usage import flags

SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> str:
    return " ".join(node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text"))


@given(whole)
def test_every_machine_can_be_drawn(topology: Topology) -> None:
    said = words(draw(topology))
    for gpu in topology.devices:
        assert f"GPU{gpu.index}" in said


@pytest.mark.parametrize("name", ["dgx1.txt", "dgx_a100.txt", "pcie_two_sockets.txt", "one_gpu.txt", "dgx1.xml"])
@pytest.mark.parametrize("look", [LIGHT, narrow(DARK)])
def test_nothing_falls_out_of_the_picture(name: str, look: Look) -> None:
    topology = read(text(name))
    root = ElementTree.fromstring(draw(topology, choice=choose(topology, len(topology.devices)), look=look))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for node in root.iter():
        for key in ("x", "x1", "x2", "cx"):
            assert 0 <= float(node.attrib.get(key, 0)) <= width
        for key in ("y", "y1", "y2", "cy"):
            assert 0 <= float(node.attrib.get(key, 0)) <= height


def test_links_are_drawn_as_wide_as_they_are() -> None:
    svg = draw(read(text("dgx1.txt")))
    widths = dict(re.findall(r'stroke-width="([\d.]+)"><title>(GPU0–GPU[13]: NV\d)', svg))
    assert {kind: float(width) for width, kind in widths.items()} == {"GPU0–GPU1: NV1": 3.1, "GPU0–GPU3: NV2": 4.7}
    assert "SYS" not in svg, "a link across sockets is no line"


def test_a_switch_is_drawn_as_one() -> None:
    assert "NVLink × 12" in words(draw(read(text("dgx_a100.txt"))))


def test_a_choice_and_an_idle_link_stand_out() -> None:
    topology = read(text("dgx1.txt"))
    idle = flags(nccl_log.read(text("nccl_p2p_off.log")), topology)
    svg = draw(topology, choice=choose(topology, 4), flags=idle)
    assert "stroke-dasharray" in svg
    assert "NCCL_P2P_DISABLE=1" in words(svg)
    assert "chosen: GPU0, GPU1, GPU2, GPU3" in words(svg)


def test_names_are_escaped() -> None:
    topology = msgspec.structs.replace(Topology(), host="<&>", devices=(Gpu(index=0, name='"<b>"'),))
    assert "<&>" in words(draw(topology))


def test_the_text_of_a_narrow_picture_fits_and_a_dark_one_is_light() -> None:
    topology = read(text("dgx1.xml"))
    svg = draw(topology, choice=choose(topology, 4), look=narrow(DARK))
    root = ElementTree.fromstring(svg)
    assert float(root.attrib["width"]) <= 350, "a phone of 400 pixels, without the margins of the page"
    for node in root.iter(f"{SVG}text"):
        length = len(node.text or "") * float(node.attrib["font-size"]) * 0.55
        start = float(node.attrib["x"]) - (length / 2 if node.attrib["text-anchor"] == "middle" else 0)
        assert start >= -2, node.text
        assert start + length <= 350, node.text
    assert LIGHT.ink not in svg
