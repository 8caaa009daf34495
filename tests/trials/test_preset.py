"""Presets: written by `tune`, found by `run`."""

from __future__ import annotations

import pytest

from paceline.errors import RecordError, UsageError
from paceline.trials.tune.preset import Preset, find_preset, whole_path, write_preset


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Two presets of train.py and a newer one of other.py."""
    monkeypatch.chdir(tmp_path)
    for name, script, made, mods in (
        ("a", "train.py", 3.0, ["tf32", "resident"]),
        ("b", "train.py", 2.0, ["compile=default"]),
        ("c", "other.py", 4.0, ["loader=2"]),
    ):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        write_preset(folder, Preset(script=whole_path(script, module=False), mods=mods, made=made, workers=2))
    (tmp_path / "runs" / "no-preset").mkdir()
    return tmp_path / "runs"


def test_tuned_is_the_newest_of_the_script(records):
    preset, folder = find_preset("tuned", "train.py", module=False, records=records)
    assert preset.mods == ["tf32", "resident"]
    assert preset.workers == 2
    assert folder == records / "a"


def test_a_script_is_the_same_from_wherever_it_is_named(records, monkeypatch):
    monkeypatch.chdir(records)
    assert find_preset("tuned", "../train.py", module=False, records=records)[1] == records / "a"


def test_a_record_is_named_by_its_path(records):
    for asked in (records / "b", records / "b" / "preset.json"):
        preset, folder = find_preset(str(asked), "train.py", module=False, records=records)
        assert preset.mods == ["compile=default"]
        assert folder == records / "b"


def test_a_preset_of_another_script_is_refused_with_what_to_type(records):
    with pytest.raises(UsageError, match=r"belongs to .*other\.py, not to train\.py") as error:
        find_preset(str(records / "c"), "train.py", module=False, records=records)
    assert "--mod loader=2" in error.value.advice


def test_none_found_is_said_with_what_to_type(records):
    with pytest.raises(UsageError, match=r"no preset of new\.py") as error:
        find_preset("tuned", "new.py", module=False, records=records)
    assert "3 of other scripts" in error.value.message
    assert error.value.advice == "Make one: paceline tune new.py"
    for asked in (records / "no-preset", records / "nowhere"):
        with pytest.raises(UsageError, match=r"no preset\.json"):
            find_preset(str(asked), "train.py", module=False, records=records)
    with pytest.raises(UsageError, match=r"no preset of train\.py"):
        find_preset("tuned", "train.py", module=False, records=records / "nowhere")


def test_a_damaged_preset_is_said(records):
    (records / "a" / "preset.json").write_text("{")
    with pytest.raises(RecordError, match="is not a preset"):
        find_preset(str(records / "a"), "train.py", module=False, records=records)


def test_a_module_is_known_by_its_file():
    assert whole_path("json.tool", module=True).endswith("json/tool.py")
    assert whole_path("no.such", module=True) == "no.such"
