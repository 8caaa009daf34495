"""What `paceline topo` makes of what was typed, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paceline.topology import Host
from paceline.topology.machine import Topology, from_json
from paceline.topology.reading import read_file

TEXTS = Path(__file__).parents[1] / "topology" / "texts"


def text(name: str) -> str:
    return str(TEXTS / name)


def test_this_machine(paceline_):
    code, out, err = paceline_("topo")
    assert (code, err) == (0, "")
    for words in ("CPU     ", "granted CPUs", "NUMA node"):
        assert words in out


def test_the_document_of_this_machine_can_be_read_again(paceline_, tmp_path):
    code, out, err = paceline_("topo", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert (document["schema"], document["verb"], document["record"]) == (1, "topo", None)
    assert {"devices", "links", "numa", "nics", "choice"} <= document.keys()
    (tmp_path / "machine.json").write_text(out)
    code, again, _ = paceline_("topo", "--from", str(tmp_path / "machine.json"), "--json")
    assert (code, json.loads(again)) == (0, document)


@pytest.mark.parametrize("name", ["dgx1.txt", "dgx_a100.txt", "pcie_two_sockets.txt", "one_gpu.txt", "dgx1.xml"])
def test_another_machine_from_its_text(paceline_, name):
    topology = read_file(TEXTS / name)
    code, out, err = paceline_("topo", "--from", text(name))
    assert (code, err) == (0, "")
    matrix = {
        words[0]: words[1:] for line in out.splitlines() if (words := line.split()) and words[0].startswith("GPU")
    }
    for gpu in topology.devices:
        kinds = [topology.kinds()[f"GPU{gpu.index}", f"GPU{other.index}"] for other in topology.devices]
        assert matrix[f"GPU{gpu.index}"][: len(kinds)] == kinds
    code, out, _ = paceline_("topo", "--from", text(name), "--json")
    assert from_json(out) == topology


@pytest.mark.parametrize(
    ("k", "devices", "says"), [(2, [0, 3], "2 NVLinks"), (4, [0, 1, 2, 3], "NUMA node 0"), (8, list(range(8)), "NV2")]
)
def test_a_choice_and_why(paceline_, k, devices, says):
    _, out, _ = paceline_("topo", "--from", text("dgx1.txt"), "--choose", str(k))
    assert f"best {k}: {' '.join(f'GPU{index}' for index in devices)}" in out
    assert f"CUDA_VISIBLE_DEVICES={','.join(map(str, devices))}" in out
    assert says in out
    _, out, _ = paceline_("topo", "--from", text("dgx1.txt"), "--choose", str(k), "--json")
    choice = json.loads(out)["choice"]
    assert (choice["k"], choice["devices"]) == (k, devices)
    assert says in choice["why"]


def test_what_nccl_uses_stands_in_the_matrix(paceline_):
    code, out, _ = paceline_("topo", "--from", text("dgx1.txt"), "--nccl-log", text("nccl_ring_of_8.log"))
    row = next(line for line in out.splitlines() if line.startswith("GPU0 "))
    assert row.split()[1:9] == ["X", "NV1", "NV1", "NV2·P2P", "NV2·P2P", "SYS", "SYS", "SYS"]
    assert "ring    0→1→2→3→4→5→6→7→0 (channels 0-1)" in out
    assert "tree    0 ← 1 ← 2" in out
    assert "ranks   0: GPU0 · 1: GPU3" in out
    assert code == 0
    assert "!" not in out


def test_idle_nvlinks_are_flagged(paceline_):
    line = ("topo", "--from", text("dgx1.txt"), "--nccl-log", text("nccl_p2p_off.log"))
    code, out, _ = paceline_(*line)
    assert code == 0
    assert "NV2·SHM!" in out
    assert "! GPU0 and GPU3 have 2 NVLinks but communicate through host memory" in out
    assert "NCCL_P2P_DISABLE=1 disables the NVLinks" in out
    assert "→ unset NCCL_P2P_DISABLE" in out
    _, out, _ = paceline_(*line, "--json")
    nccl = json.loads(out)["nccl"]
    assert [(flag["a"], flag["b"], flag["variable"]) for flag in nccl["flags"]] == [(0, 3, "NCCL_P2P_DISABLE=1")]
    assert nccl["uses"][0]["transport"] == "SHM"


def test_the_logs_of_a_record_are_read_together(paceline_, tmp_path):
    lines = (TEXTS / "nccl_p2p_off.log").read_text().splitlines(keepends=True)
    for rank in (0, 1):
        (tmp_path / f"log.rank{rank}.txt").write_text("".join(line for line in lines if f":20{rank} " in line))
    _, out, _ = paceline_("topo", "--from", text("dgx1.txt"), "--nccl-log", str(tmp_path))
    assert "SHM/direct/direct: 0→1, 1→0" in out
    code, _, err = paceline_("topo", "--nccl-log", str(TEXTS))
    assert (code, "no log.rank*.txt there" in err) == (2, True)


def test_a_log_of_another_machine_is_shown_without_its_links(paceline_, monkeypatch):
    monkeypatch.setattr("paceline.cli.topo.survey", lambda: Topology(host="here"))
    code, out, _ = paceline_("topo", "--nccl-log", text("nccl_two_hosts.log"))
    assert code == 0
    assert "?·P2P" in out
    assert "1→2, 3→0" in out
    assert "tree    0 ← (1, 2 ← 3) (channels 0)" in out
    assert "--from FILE" in out


def test_a_log_that_does_not_fit_the_machine_is_said(paceline_):
    _, out, _ = paceline_("topo", "--from", text("one_gpu.txt"), "--nccl-log", text("nccl_p2p_off.log"))
    assert "The log names GPU3, which this topology lacks" in out


def test_gpus_without_the_drivers_library_are_told_of(paceline_, monkeypatch):
    monkeypatch.setattr("paceline.cli.topo.survey", lambda: Topology(host="here"))
    monkeypatch.setattr("paceline.cli.topo.discover", lambda: Host(name="here", cores=(), gpus=("0", "1")))
    _, out, _ = paceline_("topo")
    assert "This machine has 2 GPUs, but without NVML" in out
    assert "pip install nvidia-ml-py" in out


def test_a_picture(paceline_, tmp_path):
    where = tmp_path / "dgx1.svg"
    code, out, _ = paceline_("topo", "--from", text("dgx1.txt"), "--svg", str(where))
    assert (code, f"picture: {where}" in out) == (0, True)
    assert ElementTree.parse(where).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("line", "message", "advice"),
    [
        ("--from nowhere.txt", "--from nowhere.txt: No such file", "path of an existing file"),
        ("--from broken.txt", "broken.txt: Line 2 of the matrix: GPU0 has 1 links", "nvidia-smi topo -m"),
        (
            "--from broken.json",
            "broken.json: This JSON document is incomplete or invalid, line 1",
            "paceline topo --json",
        ),
        ("--from broken.xml", "broken.xml: Line 2 of the XML", "NCCL_TOPO_DUMP_FILE"),
        ("--from nccl.log", "nccl.log: This file is an NCCL log", "--nccl-log"),
        ("--from good.txt --choose 3", "Cannot choose 3 GPUs: there are only 2", "--choose 2"),
        ("--from good.txt --nccl-log good.txt", "good.txt: The log has no NCCL lines", "NCCL_DEBUG=INFO"),
        ("--from good.txt --svg nowhere/a.svg", "--svg nowhere/a.svg: No such file", "can be written"),
        ("--choose two", "--choose two: not a whole number", "paceline topo --help"),
    ],
)
def test_a_mistake_is_two_lines_and_exit_code_2(paceline_, monkeypatch, tmp_path, line, message, advice):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n")
    (tmp_path / "broken.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \n")
    (tmp_path / "broken.json").write_text('{"devices": [')
    (tmp_path / "broken.xml").write_text("<system>\n<cpu></system>")
    (tmp_path / "nccl.log").write_text("h:1:2 [0] NCCL INFO Bootstrap\n")
    code, out, err = paceline_("topo", *line.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"paceline: {message}")
    assert advice in err
    assert "Traceback" not in err
    code, out, _ = paceline_("topo", "--json", *line.split())
    assert code == 2
    assert json.loads(out)["error"]["type"] == "UsageError"
