"""What a shell offers for mods and their values."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from paceline.mods.catalog import complete


def offered(words: str) -> list[str]:
    """What bash would offer for the last word. bash takes words apart at `=`."""
    split = words.replace("=", " = ").split(" ")
    done = subprocess.run(
        [sys.executable, "-m", "paceline"],
        env={
            **os.environ,
            "_PACELINE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(word for word in split if word),
            "COMP_CWORD": str(len([word for word in split if word]) - (not words.endswith(" "))),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("paceline run --mod prec", ["precision=bf16", "precision=fp16"]),
        ("paceline run --mod c", ["channels_last", "checkpointing", "compile=", "cuda_graphs", "cudnn_benchmark"]),
        ("paceline run --mod precision=b", ["bf16"]),
        ("paceline scale --mod precision=", ["bf16", "fp16"]),
        ("paceline tune --without chann", ["channels_last"]),
    ],
)
def test_bash_is_offered_mods_and_their_values(words, expected, tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert offered(words) == expected


def test_a_script_follows_a_mod_without_a_value(tmp_path, monkeypatch):
    """Nothing is offered, so that bash offers files."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert offered("paceline run --mod compile ") == []


def test_shells_that_keep_the_word_whole_are_offered_whole_mods():
    assert [mod.removeprefix("optimizer=") for mod, _ in complete("optimizer=la")] == [
        "lamb",
        "lars",
        "lamb:0.02",
        "lars:5",
    ]
    assert [mod for mod, _ in complete("accumulate=")] == ["accumulate=2", "accumulate=4", "accumulate=8"]
    assert [mod for mod, _ in complete("chan")] == ["channels_last"]
