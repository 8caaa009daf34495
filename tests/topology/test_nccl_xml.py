"""NCCL's XML says the same of a machine as nvidia-smi's matrix."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import text

from paceline.errors import UsageError
from paceline.topology import nccl_xml
from paceline.topology.reading import read


def test_dgx_1_as_its_matrix_says() -> None:
    xml, matrix = read(text("dgx1.xml")), read(text("dgx1.txt"))
    assert [(link.a, link.b, link.kind) for link in xml.links] == [(link.a, link.b, link.kind) for link in matrix.links]
    assert [(gpu.node, gpu.cpus) for gpu in xml.devices] == [(gpu.node, gpu.cpus) for gpu in matrix.devices]
    assert [(nic.name, nic.node) for nic in xml.nics] == [(nic.name, nic.node) for nic in matrix.nics]
    assert xml.kinds()["GPU1", "NIC0"] == "PIX"
    assert xml.kinds()["GPU1", "NIC3"] == "SYS"
    gpu = xml.devices[3]
    assert (gpu.bus, gpu.pcie_generation, gpu.pcie_width, gpu.nvlinks) == ("0000:0b:00.0", 3, 16, 6)
    assert xml.nics[2].gbit_per_s == 100
    assert xml.nics[2].kind == "infiniband"


def test_nvlinks_to_a_switch_join_everybody() -> None:
    topology = read(text("switch.xml"))
    assert {link.kind for link in topology.links} == {"NV12"}
    assert (topology.nics[0].name, topology.nics[0].kind, topology.nics[0].bus) == ("eth0", "ethernet", "")
    assert topology.kinds()["NIC0", "GPU0"] == "PHB"


def test_a_pair_on_a_switch_has_the_links_of_the_one_with_fewer() -> None:
    topology = read(text("switch.xml").replace('count="2"', 'count="1"', 6))
    assert [link.kind for link in topology.links] == ["NV6", "NV6", "NV6", "NV12", "NV12", "NV12"]


def pci(bus: str, inner: str) -> str:
    return f'<pci busid="0000:{bus}:00.0" link_speed="16.0 GT/s PCIe" link_width="16">{inner}</pci>'


def test_the_switches_between_two_gpus_are_counted() -> None:
    gpus = [f'<gpu dev="{index}" sm="80"/>' for index in range(6)]
    below = pci("02", pci("03", gpus[0]) + pci("04", gpus[1]))
    tree = pci("01", below + pci("05", pci("06", gpus[2]))) + pci("07", gpus[3])
    second = f'<cpu numaid="0">{pci("08", gpus[4])}</cpu><cpu numaid="1">{pci("09", gpus[5])}</cpu>'
    topology = read(f'<system><cpu numaid="0">{tree}</cpu>{second}</system>')
    kinds = {(link.a, link.b): link.kind for link in topology.links}
    assert (kinds[0, 1], kinds[0, 2], kinds[0, 3], kinds[0, 4], kinds[0, 5]) == ("PIX", "PXB", "PHB", "NODE", "SYS")


@pytest.mark.parametrize(
    ("broken", "line", "says"),
    [
        ("<system>\n<cpu numaid='0'>\n</system>", 3, "mismatched tag"),
        ("<system>\n<cpu>\n<pci busid='1:0.0'><gpu dev='0'/></pci></cpu></system>", 2, "<cpu> has no numaid"),
        ("<system><cpu numaid='0'>\n<gpu dev='0'/></cpu></system>", 2, "no PCI address"),
        ("<system><cpu numaid='0'>\n<pci>\n<gpu dev='0'/></pci></cpu></system>", 2, "<pci> without busid"),
        ("<system><cpu numaid='0'><pci busid='1:0.0'>\n<gpu dev='x'/></pci></cpu></system>", 2, "<gpu> has dev='x'"),
        ("<system>\n<pci busid='1:0.0'><gpu dev='0'/></pci></system>", 2, "<gpu> is outside a <cpu>"),
        ("<svg>\n</svg>", 1, "<svg> is the outermost element"),
        ("<!DOCTYPE a [\n<!ENTITY b 'c'>]><system/>", 2, "defines an entity"),
        ("<system><cpu host_hash='1' numaid='0'/>\n<cpu host_hash='2' numaid='0'/></system>", 1, "2 hosts"),
        (
            "<system><cpu numaid='0'><pci busid='1:0.0'><gpu dev='0'/></pci>\n"
            "<pci busid='2:0.0'><gpu dev='0'/></pci></cpu></system>",
            2,
            "a second GPU has dev=0",
        ),
    ],
)
def test_broken_xml_gets_an_error_that_names_the_line(broken: str, line: int, says: str) -> None:
    with pytest.raises(UsageError, match=rf"Line {line} of the XML: .*{re.escape(says)}") as refused:
        nccl_xml.read(broken)
    assert "NCCL_TOPO_DUMP_FILE" in refused.value.advice


@given(st.data())
def test_an_xml_with_a_hole_is_read_or_refused_never_a_bug(data: st.DataObject) -> None:
    whole = text("dgx1.xml")
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 60)))
    refused = None
    try:
        nccl_xml.read(whole[:start] + whole[end:])
    except UsageError as error:
        refused = error.message
    assert refused is None or re.match(r"Line \d+ of the XML", refused)
