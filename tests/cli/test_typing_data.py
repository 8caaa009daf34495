"""`paceline data`: packing and checking, as typed."""

from __future__ import annotations

import io
import json
import re
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
    hint = out[out.index("read them:") :].splitlines()[1:]
    space: dict = {}
    exec("\n".join(line.strip() for line in hint), space)
    assert len(list(space["samples"])) == 10, "the hint is Python as it stands"
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


def test_the_examples_of_the_help_work_as_typed(paceline_, pictures):
    (pictures / "images").mkdir()
    (pictures / "train").rename(pictures / "images" / "train")
    (pictures / "mysets.py").write_text("train = [(n, n) for n in range(40)]\n")
    _, out, _ = paceline_("data", "--help")
    _, more, _ = paceline_("data", "pack", "--help")
    _, last, _ = paceline_("data", "check", "--help")
    lines = re.findall(r"(?m)^ (?:Example: |         )paceline (.*)$", "\n".join((out, more, last)))
    assert len(lines) == 5
    for line in lines:
        code, _, err = paceline_(*line.split())
        assert (code, err) == (0, ""), line


def test_what_cannot_be_decoded_is_named_and_left_out(paceline_, pictures):
    (pictures / "train" / "ant" / "none.png").write_bytes(b"no picture")
    whole = (pictures / "train" / "ant" / "0.png").read_bytes()
    (pictures / "train" / "cat" / "half.png").write_bytes(whole[: len(whole) // 2])
    code, out, err = paceline_("data", "pack", "train")
    assert code == 1
    assert "10 records, 2 classes" in out
    assert "! train/ant/none.png: The image cannot be decoded: cannot identify image file.\n" in err
    assert "! train/cat/half.png: The image cannot be decoded: " in err
    assert "2 images cannot be decoded, and are not in train-packed." in err
    assert paceline_("data", "check", "train-packed", "--decode")[0] == 0
    code, out, _ = paceline_("data", "pack", "train", "--out", "again", "--json")
    document = json.loads(out)
    assert (code, document["records"], len(document["left_out"])) == (1, 10, 2)
    assert document["error"]["type"] == "DataError"
    code, out, _ = paceline_("data", "pack", "train", "--out", "all", "--no-decode")
    assert code == 0
    assert "12 records" in out
    for path in (pictures / "train").rglob("*.png"):
        path.write_bytes(b"no picture")
    code, _, err = paceline_("data", "pack", "train", "--out", "nothing", "--quiet")
    assert code == 1
    assert "none of its 12 images can be decoded" in err


PRINTS = """\
import os
print("the module prints")
os.write(1, b"and so does its library\\n")
class Set:
    def __len__(self): return 20
    def __getitem__(self, n):
        print("sample", n)
        if n == FAILS: raise ValueError("no such sample")
        return n, n
train = Set()
"""


@pytest.mark.parametrize("json_too", [True, False])
def test_what_a_dataset_prints_is_not_part_of_the_result(paceline_, tmp_path, monkeypatch, json_too):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets.py").write_text(PRINTS.replace("FAILS", "-1"))
    code, out, err = paceline_("data", "pack", "sets.py:train", *["--json"] * json_too)
    assert code == 0
    assert not [words for words in ("module prints", "library", "sample 3") if words in out or words not in err]
    assert not json_too or json.loads(out)["records"] == 20


def test_a_sample_that_cannot_be_made_is_named(paceline_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets.py").write_text(PRINTS.replace("FAILS", "7") + "odd = [1, 2, object()]\n")
    code, _, err = paceline_("data", "pack", "sets.py:train")
    assert code == 1
    assert "paceline: Sample 7 of the dataset cannot be made: ValueError: no such sample\n" in err
    assert "bug in paceline" not in err
    code, _, err = paceline_("data", "pack", "sets.py:odd", "--out", "odd")
    assert code == 2
    assert "paceline: Sample 2: A sample with a object cannot be packed." in err
    (tmp_path / "broken.py").write_text("1 / 0\n")
    code, _, err = paceline_("data", "pack", "broken.py:train")
    assert code == 2
    assert "broken.py:train cannot be imported: ZeroDivisionError: division by zero." in err


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
