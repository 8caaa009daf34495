"""What `paceline plan` makes of what was typed, and what it prints. Measuring is tests/acceptance/test_plan_verb.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "plan"))
from works import steps, write_record, write_series


@pytest.fixture
def series(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_series(tmp_path / "paceline-runs" / "2026-11-15T10-22-31-plan-train")


def test_a_table_a_picture_and_what_is_not_known(paceline_, series):
    code, out, err = paceline_("plan", "--cluster", "dgx1x4", "-n", "1,2,8,32")
    assert (code, err) == (0, "")
    for words in (
        "train.py on DGX-1 V100: 4 hosts of 8 workers",
        "strong scaling, batch 64",
        "predicted, not measured",
    ):
        assert words in out
    for words in ("32 workers: limited by", "What helps:", "Not known: the speed of the cluster's devices"):
        assert words in out
    assert (series / "plots" / "plan.svg").read_text().count("Predicted, not measured") >= 1


def test_the_document(paceline_, series):
    code, out, _ = paceline_(
        "plan", "--record", str(series), "--cluster", "cpux4@1", "--goal", "time", "--weak", "--json"
    )
    document = json.loads(out)
    assert (code, document["verb"], document["mode"]) == (0, "plan", "weak")
    assert [row["workers"] for row in document["rows"]] == [1, 2, 4]
    for row in document["rows"]:
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"])
        assert row["low"] < row["samples_per_s"] < row["high"]
    assert {row["strategy"] for row in document["others"]} == {"mirrored", "sharded", "central", "server"}
    assert document["found"]["best"][0]["bottleneck"]
    assert document["unknown"]


def test_time_and_cost_to_an_accuracy(paceline_, series, tmp_path):
    noise = {"small": 32, "large": 64, "of_small": 3.0, "of_large": 2.0}
    lines = "".join(json.dumps(noise | {"step": n}) + "\n" for n in range(1, 21))
    (series / "trials" / "workers2" / "noise.rank0.jsonl").write_text(lines)
    (tmp_path / "mine.json").write_text('{"host": "dgx1", "hosts": 4, "price_per_hour": 36}')
    typed = ("plan", "--cluster", "mine.json", "-n", "8,32", "--to-accuracy", "0.7")
    out = paceline_(*typed, "--samples", "64000")[1]
    assert "to the accuracy, which costs" in out
    assert "knee: on 32 workers" in out
    rows = json.loads(paceline_(*typed, "--samples", "64000", "--json")[1])["rows"]
    for row, hosts in zip(rows, (1, 4), strict=True):
        # tr Σ = (3 - 2) / (1/32 - 1/64) = 64 and |G|² = (64 · 2 - 32 · 3) / 32 = 1; the batch is the script's own.
        assert row["seconds_to_accuracy"] == pytest.approx(64_000 / row["samples_per_s"])
        assert row["cost_to_accuracy"] == pytest.approx(row["seconds_to_accuracy"] * 36 * hosts / 3600)
    document = json.loads(paceline_(*typed, "--goal", "time", "--json")[1])
    assert document["knee"]["relative"]
    assert document["found"]["best"][0]["relative_time"] == 1
    assert "no run logged it" in "".join(document["unknown"])


def test_activations_allow_pipeline_and_mesh(paceline_, series):
    typed = ("plan", "--cluster", "dgx1", "-n", "8", "--activations", "1MiBx8")
    assert "pipeline 8" in paceline_(*typed, "--strategy", "pipeline", "--json")[1]
    assert "mesh 8" in paceline_(*typed, "--json")[1]


def test_the_pair_decides_the_speed(paceline_, series):
    def speed(pair: str) -> float:
        typed = ("plan", "--cluster", "dgx1", "-n", "2", "--speed", "1000", "--devices", pair, "--json")
        return json.loads(paceline_(*typed)[1])["rows"][0]["seconds"]

    assert speed("1,7") > speed("0,3")


def test_a_cluster_of_ones_own(paceline_, series, tmp_path):
    code, out, _ = paceline_("topo", "--json")
    (tmp_path / "machine.json").write_text(out)
    (tmp_path / "mine.json").write_text('{"host": "machine.json", "hosts": 3, "gbit_per_s": 1, "price_per_hour": 2}')
    code, out, _ = paceline_("plan", "--cluster", "mine.json", "-n", "1", "--json")
    assert code == 0
    assert (json.loads(out)["cluster"], json.loads(out)["hosts"]) == ("mine", 3)
    assert paceline_("plan", "--cluster", "machine.json", "-n", "1")[0] == 0


def test_what_bandwidth_measured_replaces_the_usual_rates(paceline_, series, tmp_path):
    pair = {"a": 0, "b": 3, "gb_per_s": 1.0, "latency": 1e-6, "direct": True}
    (tmp_path / "measured.json").write_text(json.dumps({"workers": 8, "pairs": [pair], "collectives": []}))

    def seconds(*more: str) -> float:
        typed = ("plan", "--cluster", "dgx1", "-n", "2", "--speed", "1000", "--devices", "0,3", "--json", *more)
        return json.loads(paceline_(*typed)[1])["rows"][0]["parts"]["communication"]

    assert seconds("--bandwidth", "measured.json") > seconds()


def test_the_presets(paceline_):
    code, out, _ = paceline_("plan", "--clusters")
    assert code == 0
    for name in ("dgx1", "dgxa100", "dgxh100", "pcie8", "cpu", "price_per_hour"):
        assert name in out
    assert set(json.loads(paceline_("plan", "--clusters", "--json")[1])["clusters"]) > {"dgx1", "cpu"}


def test_the_check_shows_predicted_and_measured(paceline_, series):
    code, out, _ = paceline_("plan", "--check", "--cluster", "cpux2@10")
    assert code == 1
    assert "No run could be predicted" in out
    write_record(series / "trials" / "round2-workers2", [steps(0.18, samples=64)] * 2)
    code, out, _ = paceline_("plan", "--check", "--cluster", "cpux2@10")
    assert code == 0
    assert "error: median" in out
    assert json.loads(paceline_("plan", "--check", "--cluster", "cpux2@10", "--json")[1])["worst"] < 0.1


@pytest.mark.parametrize(
    ("typed", "says", "advice"),
    [
        (["--cluster", "dgx9"], "--cluster dgx9: there is no such preset", "--cluster dgx1x4"),
        (["--cluster", "broken.json"], "not valid JSON", '{"host": "dgx1"'),
        (["--cluster", "list.json"], "the key host is missing", '{"host": "dgx1"'),
        (["--cluster", "odd.json"], "unknown field", '{"host": "dgx1"'),
        (["--cluster", "none.json"], "No such file", "existing file"),
        (["--cluster", "dgx1x0"], "hosts must be above 0", ""),
        (["-n", "1,x"], "-n 1,x: not a list", "-n 1,2,4"),
        (["--cluster", "dgx1", "-n", "9"], "1 hosts of 8 workers", "dgx1x64"),
        (["--cluster", "dgx1", "--devices", "1,9"], "the host's GPUs are 0, 1", "--devices 1,7"),
        (["--strategy", "magic"], "--strategy magic: is not known", "--strategy mirrored"),
        (["--strategy", "mesh"], "needs the bytes of activations", "--activations"),
        (["--activations", "lots"], "--activations lots", "2MiBx24"),
        (["--speed", "0"], "--speed 0: must be above 0", "--speed 8"),
        (["--budget", "5"], "--budget belongs to a search", "--goal time"),
        (["--to-accuracy", "0.7"], "no gradient noise scale", "--noise-scale"),
        (["--bandwidth", "list.json"], "no measurements of paceline bandwidth", "paceline bandwidth --json"),
        (["--record", "empty"], "no run with at least 3 steps", "--measure"),
        (["--record", "nowhere"], "there is no such folder", "paceline-runs"),
        (["--measure"], "there is no script", "paceline plan --measure train.py"),
        (["train.py"], "runs no script without --measure", "paceline plan --measure train.py"),
    ],
)
def test_mistakes(paceline_, series, tmp_path, typed, says, advice):
    (tmp_path / "broken.json").write_text('{"host": ')
    (tmp_path / "list.json").write_text('{"hosts": 3}')
    (tmp_path / "odd.json").write_text('{"host": "dgx1", "colour": 3}')
    write_record(tmp_path / "empty", [[]])
    code, out, err = paceline_("plan", *typed)
    assert code in (1, 2)
    assert says in err
    assert advice in err
    assert "Traceback" not in err
    assert out == ""
