"""`paceline data`: packing and checking, as typed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import paceline.data as pd


@pytest.fixture
def pictures(tmp_path, monkeypatch) -> Path:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for number in range(10):
        folder = tmp_path / "train" / ("cat" if number % 2 else "ant")
        folder.mkdir(parents=True, exist_ok=True)
        raw = io.BytesIO()
        image.new("RGB", (8, 8), (number, 0, 0)).save(raw, "png")
        (folder / f"{number}.png").write_bytes(raw.getvalue())
    return tmp_path


def test_pictures_are_packed_checked_and_read_back(paceline_, pictures):
    code, out, err = paceline_("data", "pack", "train", "--shards", "3")
    assert (code, err) == (0, "")
    assert "10 records, 2 classes in 3 files" in out
    assert 'data.files("train-packed/*.tfrecord").records().map(data.decode_example)' in out
    found = list(pd.files("train-packed/*.tfrecord").records().map(pd.decode_example))
    reds = {pd.decode_image(sample["image/encoded"][0])[0, 0, 0].item(): sample for sample in found}
    assert sorted(reds) == list(range(10))
    for number, sample in reds.items():
        assert sample["image/class/label"].tolist() == [number % 2]
        assert sample["image/class/text"] == [b"cat" if number % 2 else b"ant"]
        assert sample["image/filename"] == [f"{'cat' if number % 2 else 'ant'}/{number}.png".encode()]
    code, out, _ = paceline_("data", "check", "train-packed", "--decode")
    assert code == 0
    assert "10 records, all intact" in out
    assert out.count("right") == 3
    code, out, _ = paceline_("data", "check", "train-packed", "--json")
    document = json.loads(out)
    assert (document["verb"], document["records"], document["damaged"]) == ("data check", 10, 0)


def test_the_order_is_the_seeds(paceline_, pictures):
    def names(*options: str) -> list[bytes]:
        paceline_("data", "pack", "train", "--out", "-".join(["out", *options]), "--shards", "1", *options)
        pipeline = pd.files(f"{'-'.join(['out', *options])}/*.tfrecord").records().map(pd.decode_example)
        return [sample["image/filename"][0] for sample in pipeline]

    assert names("--no-shuffle") == sorted(names())
    assert names("--seed", "1") != names("--seed", "2")


def test_damage_is_found_and_told(paceline_, pictures):
    paceline_("data", "pack", "train", "--shards", "2", "--quiet")
    first, second = sorted(Path("train-packed").glob("*.tfrecord"))
    raw = bytearray(first.read_bytes())
    raw[40] ^= 1
    first.write_bytes(raw)
    code, out, _ = paceline_("data", "check", "train-packed")
    assert code == 1
    assert f"! {first}: record 0, at byte 0: its checksum is wrong." in out
    assert "10 records were packed, 9 are there" in out
    second.with_name(f"{second.name}.index").write_text("0 17\n")
    code, out, _ = paceline_("data", "check", str(second), "--json")
    assert code == 1
    assert json.loads(out)["files"][0]["index"] == "wrong"
    second.unlink()
    _, out, _ = paceline_("data", "check", "train-packed")
    assert f"{second.name} is missing" in out
    with pd.Writer("train-packed/bad.tfrecord") as writer:
        writer.write(pd.encode_example({"image/encoded": b"no picture"}))
    assert paceline_("data", "check", "train-packed/bad.tfrecord")[0] == 0
    code, out, _ = paceline_("data", "check", "train-packed/bad.tfrecord", "--decode")
    assert code == 1
    assert "record 0, image/encoded: The image cannot be decoded" in out


def test_any_dataset_is_packed(paceline_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets.py").write_text(
        "import numpy as np\n"
        "train = [(np.full(3, n, np.float32), n) for n in range(20)]\n"
        "def made(): return train[:5]\n"
    )
    code, out, _ = paceline_("data", "pack", "sets.py:train", "--json")
    document = json.loads(out)
    assert (code, document["records"], document["kind"], document["folder"]) == (0, 20, "samples", "sets-packed")
    found = sorted((x.tolist(), n) for x, n in pd.files("sets-packed/*.tfrecord").records().map(pd.decode_sample))
    assert found == [([n, n, n], n) for n in range(20)]
    assert paceline_("data", "pack", "sets.py:made", "--out", "five", "--quiet") == (0, "", "")
    assert len(list(pd.indexed("five/*.tfrecord"))) == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pack", "none"), "not a folder"),
        (("pack", "none.py:x"), "none.py:x cannot be imported"),
        (("pack", "json:nothing"), "json has no nothing"),
        (("pack", "json:__name__"), "a str, which"),
        (("check", "none"), "none does not exist"),
        (("check", "."), "has no record files"),
        (("pack", "train", "--shards", "0"), "--shards"),
    ],
)
def test_mistakes_are_two_lines(paceline_, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    if says == "a str, which":
        arguments, says = ("pack", "json:decoder"), "a module, which has no length"
    code, out, err = paceline_("data", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


def test_a_folder_that_holds_something_is_left_alone(paceline_, pictures):
    (pictures / "full").mkdir()
    (pictures / "full" / "thing").touch()
    code, _, err = paceline_("data", "pack", "train", "--out", "full")
    assert code == 2
    assert "is not empty" in err


@pytest.mark.parametrize("words", [[], ["pack"], ["check"]])
def test_help_begins_with_an_example(paceline_, words):
    code, out, _ = paceline_("data", *words, "--help")
    assert code == 0
    assert out.strip().startswith("Example: paceline data")


def test_no_torch_in_this_process():
    code = "import sys, paceline.cli.data; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_sizes_have_a_limit(paceline_, pictures):
    code, _, err = paceline_("data", "pack", "train", "--max-bytes", "10")
    assert code == 1
    assert "over the limit of 10 bytes" in err
    assert "--max-bytes 1MiB" in err
    paceline_("data", "pack", "train", "--shards", "1", "--quiet")
    code, out, _ = paceline_("data", "check", "train-packed", "--decode", "--max-bytes", "190")
    assert code == 1
    assert out.count("(8 × 8 pixels) has 192 bytes, over the limit of 190 bytes") == 10
    assert paceline_("data", "check", "train-packed", "--decode", "--max-bytes", "1GiB")[0] == 0
    code, _, err = paceline_("data", "check", "train-packed", "--max-bytes", "much")
    assert (code, "--max-bytes much: not a size" in err) == (2, True)
