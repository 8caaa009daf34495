"""Command lines that are wrong: each is answered in paceline's own words, before anything starts."""

from __future__ import annotations

import json

import pytest

LIBRARY_WORDS = (
    "No such",
    "Invalid value",
    "Missing argument",
    "Input should",
    "unable to parse",
    "Value error",
    "Possible options",
    "Got unexpected",
    "requires an argument",
)
PARSES = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("-n", type=int)
parser.add_argument("--batch-size", type=int)
"""


@pytest.mark.parametrize(
    ("line", "message", "advice"),
    [
        ("run --epochs 3 train.py --lr 1", "train.py has it", "Type: paceline run train.py --epochs 3 --lr 1"),
        ("run -n 2 --epochs 3 --lr 1 train.py", "train.py has it", "paceline run -n 2 train.py --epochs 3 --lr 1"),
        ("run --depth=3 train.py", "--depth is not an option", "paceline run train.py --depth=3"),
        ("run --stepz 4 train.py", "--stepz is not an option", "Did you mean --steps?"),
        ("run --nproc-per-node 2 train.py", "--nproc-per-node is not an option", "-n N"),
        ("run --timeline train.py --epochs 3", "taken for the value of --timeline", "run --timeline FILE train.py"),
        ("run --timeline train.py", "taken for the value of --timeline", "run --timeline FILE train.py"),
        ("run --steps 0 train.py", "--steps 0: not a whole number from 1", "--steps 2"),
        ("run --steps=x train.py", "--steps x: not a whole number from 1", "--steps 2"),
        ("run -nx train.py", "-n x: not a whole number", "-n 2"),
        ("run --batch scal train.py", "--batch scal: not one of keep, scale", "--batch scale"),
        ("run --stall-abort soon train.py", "--stall-abort soon: not a number from 0", "--stall-abort"),
        ("run --steps", "--steps needs a value", "--steps K"),
        ("run --json=3 train.py", "--json takes no value", "--json"),
        ("converge --target 2 train.py", "--target 2: not a number from 0 to 1", "--target 1"),
        ("train.py", "paceline has no command 'train.py'", "paceline run train.py"),
        ("compare one two", "paceline has no command 'compare'", "tick two or more runs"),
        ("ls", "paceline has no command 'ls'", "type: paceline runs"),
        ("benchmark train.py", "paceline has no command 'benchmark'", "paceline scale -n 1,2,4 train.py"),
        ("data pakc", "paceline data has no command 'pakc'", "paceline data pack"),
        ("data pack", "DIR is missing", "paceline data pack"),
        ("mods more", "paceline mods: 'more' is too much", "Leave it out"),
        ("sweep --steps 2 train.py", "--steps 2: not a whole number from 10", "--steps 1000"),
        ("view --port abc", "--port abc: not a whole number from 0 to 65535", "--port 8000"),
        ("view", "There are no records here", "paceline view --record DIR"),
        ("runs", "There are no records here", "paceline runs --record DIR"),
        ("runs --record nowhere", "--record nowhere: there is no such folder", "paceline-runs"),
        ("run --strategy mirored train.py", "there is no strategy 'mirored'", "Did you mean --strategy mirrored?"),
    ],
)
def test_a_line_that_cannot_be_parsed(launched, paceline_, tmp_path, line, message, advice):
    (tmp_path / "train.py").write_text(PARSES)
    code, out, err = paceline_(*line.split())
    assert (code, out) == (2, "")
    assert message in err
    assert advice in err
    assert not [words for words in LIBRARY_WORDS if words in err]
    assert launched.runs == []


@pytest.mark.parametrize(
    ("line", "message", "advice"),
    [
        ("run --mod bf16", "there is no mod 'bf16'", "Did you mean --mod precision=bf16?"),
        ("run --mod precison=fp16", "there is no mod 'precison'", "--mod precision=fp16?"),
        ("run --mod channel-last", "there is no mod", "--mod channels_last?"),
        ("run --mod amp", "there is no mod", "--mod precision=bf16?"),
        ("run --mod lamb", "there is no mod", "--mod optimizer=lamb?"),
        ("run --mod acumulate=4", "there is no mod", "--mod accumulate=4?"),
        ("run --mod precision=float16", "precision takes bf16, fp16", "--mod precision=fp16"),
        ("run --mod quux", "there is no mod 'quux'", "paceline mods"),
    ],
)
def test_a_near_miss_of_a_mod(launched, paceline_, line, message, advice):
    code, _, err = paceline_(*line.split(), "train.py")
    assert code == 2
    assert message in err
    assert advice in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tune --only compile --without compile", "nothing is left to try"),
        ("tune --only compile=default --without compile", "nothing is left to try"),
        ("tune --only compile --mod compile", "already there at the start"),
        ("tune --allow batch --without batch", "contradict each other"),
        ("tune --only batch", "--allow batch"),
        ("run --batch scale --emulate 4", "both multiply the batch"),
        ("run -n 3 --emulate 4", "cannot be divided evenly between 3 workers"),
        ("run -n 2 --emulate 4 --mod accumulate=3", "2 workers in 3 micro-batches"),
        ("scale --weak --mod emulate=2", "both multiply the batch"),
        ("scale -n 1,2,3,4 --mod emulate=4", "between 3 workers"),
        ("run -n 3 --strategy sharded(replicas=2)", "a multiple of 2 workers"),
        ("run -n 2 --strategy mesh(model=3)", "a multiple of 3 workers"),
        ("run --strategy mesh(model=2,shard=0)", "at least one worker"),
        ("run -n 6 --strategy mesh(model=2,shard=2)", "a multiple of 4 workers"),
        ("run --strategy server(servers=0)", "at least one server"),
        ("run --strategy server(staleness=0,deal=free)", "synchronous"),
        ("run --strategy server(backup=1)", "backup"),
        ("profile --budget 5m", "--prove was not given"),
    ],
)
def test_options_that_contradict_each_other_start_nothing(launched, paceline_, tmp_path, line, message):
    code, out, err = paceline_(*line.split(), "train.py")
    assert (code, out) == (2, "")
    assert message in err
    assert launched.runs == []
    assert not (tmp_path / "paceline-runs").exists()


def test_no_words_at_all_show_the_help_and_no_empty_error(launched, paceline_):
    code, out, err = paceline_()
    assert code == 2
    assert "Example: paceline run" in out + err
    assert "paceline: \n" not in err


@pytest.mark.parametrize("line", [["-h"], ["run", "-h"], ["data", "-h"], ["data", "pack", "-h"], ["tune", "-h"]])
def test_h_is_short_for_help(launched, paceline_, line):
    code, out, err = paceline_(*line)
    assert (code, err) == (0, "")
    assert out.strip().startswith("Example: paceline")


def test_a_mistake_keeps_its_document(launched, paceline_):
    _, out, _ = paceline_("run", "--json", "--stepz", "3", "train.py")
    error = json.loads(out)["error"]
    assert error["message"] == "--stepz is not an option of `paceline run`."
    assert "--steps" in error["advice"]
