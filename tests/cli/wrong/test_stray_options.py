"""Options of paceline that stand after the script: noticed, where they cannot be the script's own."""

from __future__ import annotations

import pytest
import typer

from paceline.cli.command_words import may_have
from paceline.record import Outcome

NOTICE = "Options of paceline come before the script."


def test_an_option_that_the_script_does_not_mention_is_noticed(launched, paceline_):
    code, _, err = paceline_("run", "--seed", "1", "train.py", "--epochs", "3", "-n", "2")
    assert code == 0
    assert launched.runs[0].workers == 1
    assert NOTICE in err
    assert "Type: paceline run -n 2 --seed 1 train.py --epochs 3" in err


@pytest.mark.parametrize("option", ["-n2", "--workers=2", "--steps 3", "--json", "--mod channels_last"])
def test_every_spelling_is_noticed(launched, paceline_, option):
    *_, err = paceline_("run", "train.py", *option.split())
    assert NOTICE in err
    assert f"Type: paceline run {option} train.py" in err


@pytest.mark.parametrize(
    "source",
    [
        'parser.add_argument("-n", type=int)',
        "from transformers import HfArgumentParser",
        "import options",
    ],
)
def test_a_script_may_have_the_option_itself(launched, paceline_, tmp_path, source):
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "options.py").write_text("parser.add_argument('-n')")
    *_, err = paceline_("run", "train.py", "-n", "2")
    assert NOTICE not in err


@pytest.mark.parametrize("line", ["train.py --help", "train.py -- -n 2", "train.py --epochs 3", "-n 2 train.py"])
def test_other_options_are_not_noticed(launched, paceline_, line):
    *_, err = paceline_("run", *line.split())
    assert NOTICE not in err


def test_a_script_that_ended_with_a_parsers_exit_code_is_explained(launched, paceline_, tmp_path):
    (tmp_path / "train.py").write_text("from transformers import HfArgumentParser")
    launched.outcome = Outcome(exit_code=2, seconds=1.0, message="Worker 0 exited with code 2.")
    code, _, err = paceline_("run", "train.py", "-n", "2")
    assert code == 2
    assert err.index("exited with code 2") < err.index(NOTICE)


def test_the_beginning_of_an_option_may_be_the_scripts(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('--batch-size')")
    assert may_have(str(script), "--batch")
    assert not may_have(str(script), "--steps")
    assert may_have(str(tmp_path / "gone.py"), "--steps")


def test_other_verbs_notice_as_well(launched, paceline_):
    *_, err = paceline_("scale", "--repeat", "1", "train.py", "--weak")
    assert NOTICE in err
    assert "Type: paceline scale --weak --repeat 1 train.py" in err


def test_typer_still_has_the_exit_that_we_wait_for():
    assert typer.Exit(2).exit_code == 2
