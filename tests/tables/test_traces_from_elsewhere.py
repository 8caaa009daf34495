"""`paceline profile --trace FILE`: traces that Paceline did not take."""

from __future__ import annotations

import json

import pytest
from cuda_trace import COMMUNICATION, Machine

from paceline.__main__ import main


def write(folder, rank, world=2):
    machine = Machine(rank, world)
    for _ in range(4):
        with machine.step():
            with machine.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                machine.work(100_000)
            for _ in range(5):
                with machine.op("aten::linear"), machine.op("aten::addmm"):
                    machine.launch("void cutlass::Kernel<a_very_long_name_" + "x" * 80 + ">(<b>html</b>)", 90_000)
            with machine.op("nccl:all_reduce"):
                machine.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 60_000, stream=COMMUNICATION)
            with machine.op("aten::item"):
                machine.synchronize("cudaStreamSynchronize")
    return machine.write(folder / f"rank{rank}.json.gz")


def test_the_document(tmp_path, capfd):
    paths = [str(write(tmp_path, rank)) for rank in (1, 0)]
    assert main(["profile", "--json", "--quiet", "--trace", paths[0], "--trace", paths[1]]) == 0
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert err == ""
    assert (told["verb"], told["ranks"], told["steps"], told["record"]) == ("profile", 2, 4, None)
    parts = told["breakdown"]
    assert sum(parts["host"].values()) == pytest.approx(parts["step"], rel=0.02)
    assert sum(parts["device"].values()) == pytest.approx(parts["step"], rel=0.02)
    assert parts["device"]["idle_input"] > 0
    first = told["ops"][0]
    assert (first["name"], first["calls"], first["eligible"]) == ("aten::addmm", 5.0, True)
    assert first["device_self"] == pytest.approx(450e-6)
    assert isinstance(told["findings"], list)


def test_the_tables(tmp_path, capfd):
    assert main(["profile", "--top", "1", "--trace", str(write(tmp_path, 0, 1))]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "1 worker · steps 1 to 4 traced" in out
    for words in ("what the device did", "idle: waiting for input", "aten::addmm", "cutlass", "cudaStreamSynchronize"):
        assert words in out
    assert "aten::linear" not in out  # --top 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--trace", "absent.json"], "absent.json cannot be read"),
        (["--trace", "broken.json"], "broken.json is empty"),
        (["--trace", "a.json", "train.py"], "--trace reads existing traces"),
        ([], "SCRIPT is missing"),
        (["absent.py"], "absent.py"),
        (["--trace", "hollow.json"], "hollow.json has no events"),
    ],
)
def test_mistakes_are_told_in_two_lines(tmp_path, capfd, monkeypatch, line, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.__main__._starts_workers", lambda arguments: False)
    (tmp_path / "broken.json").touch()
    (tmp_path / "hollow.json").write_text("[]")
    assert main(["profile", *line]) in (1, 2)
    _, err = capfd.readouterr()
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "paceline-runs").exists()
