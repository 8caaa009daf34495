"""The text of `nvidia-smi topo -m`, as people have it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import matrices, text

from paceline.errors import UsageError
from paceline.topology import smi_matrix
from paceline.topology.machine import Topology
from paceline.topology.reading import read


@given(matrices())
def test_text_and_back(topology: Topology) -> None:
    written = smi_matrix.write(topology)
    assert smi_matrix.read(written) == topology
    assert smi_matrix.write(smi_matrix.read(written)) == written


@given(matrices(), st.booleans(), st.booleans())
def test_the_dress_of_the_text_does_not_matter(topology: Topology, pasted: bool, legend: bool) -> None:
    written = smi_matrix.write(topology)
    head, *rows = written.splitlines()
    dressed = "\r\n".join(["", f"\x1b[4m{head}\x1b[0m", *rows])
    if pasted:
        dressed = dressed.expandtabs(8)
    if not legend:
        dressed = dressed.replace("Legend:\r\n", "Legend:\r\n\r\n  OK = something new\r\n", 1)
    assert smi_matrix.read(dressed) == topology


def test_dgx_1() -> None:
    topology = read(text("dgx1.txt"))
    assert len(topology.devices) == 8
    assert len(topology.links) == 28
    counts = dict.fromkeys(range(8), 0)
    for link in topology.links:
        if link.kind.startswith("NV"):
            counts[link.a] += int(link.kind[2:])
            counts[link.b] += int(link.kind[2:])
    assert set(counts.values()) == {6}, "every GPU has six NVLinks"
    assert {topology.link(0, 3).gb_per_s, topology.link(0, 1).gb_per_s} == {48.0, 24.0}  # type: ignore[union-attr]
    assert [gpu.node for gpu in topology.devices] == [0] * 4 + [1] * 4
    assert topology.devices[7].cpus == "20-39,60-79"
    assert [nic.name for nic in topology.nics] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert [nic.node for nic in topology.nics] == [0, 0, 1, 1]
    assert topology.kinds()["GPU2", "mlx5_1"] == "PIX"


def test_dgx_a100() -> None:
    topology = read(text("dgx_a100.txt"))
    assert {link.kind for link in topology.links} == {"NV12"}
    assert [gpu.node for gpu in topology.devices] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert [(nic.label, nic.name) for nic in topology.nics] == [(f"NIC{i}", f"mlx5_{i}") for i in range(10)]
    assert topology.nics[4].node is None, "no GPU of its node: the text does not say"


def test_a_box_with_pcie_only() -> None:
    topology = read(text("pcie_two_sockets.txt"))
    assert {link.kind for link in topology.links} == {"PIX", "NODE", "SYS"}
    rates = {link.kind: link.gb_per_s for link in topology.links}
    assert rates["PIX"] > rates["NODE"] > rates["SYS"]


def test_a_box_with_one_gpu() -> None:
    topology = read(text("one_gpu.txt"))
    assert (len(topology.devices), topology.links) == (1, ())
    assert (topology.devices[0].cpus, topology.devices[0].node) == ("0-15", 0)


def test_names_of_older_versions() -> None:
    topology = read("\tGPU0\tGPU1\nGPU0\t X \tSOC\nGPU1\tSOC\t X \n")
    assert topology.links[0].kind == "SYS"


HEAD = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"


@pytest.mark.parametrize(
    ("broken", "line", "says"),
    [
        ("", 1, "the text is empty"),
        ("hello\n", 1, "'hello' is not a header"),
        ("\n\nGPU 0: Tesla (UUID: GPU-1)\n", 3, "is not a header"),
        ("\tGPU0\tGPU0\n", 1, "names GPU0 twice"),
        (HEAD + "GPU0\t X \tNV2\t0-3\t0\n", 2, "without a row for GPU1"),
        (HEAD + "GPU0\t X \nGPU1\tNV2\t X \n", 2, "GPU0 has 1 links"),
        (HEAD + "GPU0\t X \tNVX\t0-3\t0\nGPU1\tNVX\t X \t0-3\t0\n", 2, "'NVX' between GPU0 and GPU1 is not a link"),
        (HEAD + "GPU0\t X \tNV0\t0-3\t0\nGPU1\tNV0\t X \t0-3\t0\n", 2, "'NV0' between GPU0 and GPU1 is not a link"),
        (HEAD + "GPU0\t X \tNV2\t0-3\t0\nGPU1\tSYS\t X \t0-3\t0\n", 3, "GPU1 to GPU0 is SYS; expected: NV2, as line 2"),
        (HEAD + "GPU0\tNV2\tNV2\t0-3\t0\nGPU1\tNV2\t X \t0-3\t0\n", 2, "NV2 between GPU0 and GPU0"),
        (HEAD + "GPU0\t X \t X \t0-3\t0\nGPU1\tNV2\t X \t0-3\t0\n", 2, "X between GPU0 and GPU1"),
        (HEAD + "GPU0\t X \tNV2\t0-3\t0\nGPU0\t X \tNV2\t0-3\t0\n", 3, "a second row for GPU0"),
        (HEAD + "GPU0\t X \tNV2\t0-3\t0\nGPU7\tNV2\t X \t0-3\t0\n", 3, "'GPU7' is not in the header"),
        (HEAD + "GPU0\t X \tNV2\tmany\t0\nGPU1\tNV2\t X \t0-3\t0\n", 2, "'many' is not a valid CPU Affinity of GPU0"),
        (HEAD + "GPU0\t X \tNV2\t0-3\t0\tN/A\t1\t2\nGPU1\tNV2\t X \n", 2, "GPU0 has 7 cells"),
    ],
)
def test_broken_text_gets_an_error_that_names_the_line(broken: str, line: int, says: str) -> None:
    with pytest.raises(UsageError, match=rf"Line {line} of the matrix: .*{re.escape(says)}") as refused:
        smi_matrix.read(broken)
    assert "nvidia-smi topo -m" in refused.value.advice


@given(st.data())
def test_a_text_that_lost_a_word_is_read_or_refused_never_a_bug(data: st.DataObject) -> None:
    words = re.split(r"([\t\n ])", text("dgx1.txt"))
    where = data.draw(st.integers(0, len(words) - 1))
    instead = data.draw(st.sampled_from(["", "NV3", "GPU1", "\t", "\n", "X", "9", "-", "Legend:"]))
    refused = None
    try:
        smi_matrix.read("".join([*words[:where], instead, *words[where + 1 :]]))
    except UsageError as error:
        refused = error.message
    assert refused is None or re.match(r"Line \d+ of the matrix", refused)


def test_a_log_given_as_a_matrix_is_told_so() -> None:
    with pytest.raises(UsageError, match="is an NCCL log") as refused:
        read(text("nccl_p2p_off.log"))
    assert "--nccl-log" in refused.value.advice
