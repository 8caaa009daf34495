"""Settings: frozen, complete, and read from an environment that is given."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest

from paceline import settings
from paceline.settings import RunSettings, WorkerSettings, from_environment


def test_settings_cannot_be_changed() -> None:
    run = RunSettings(script="train.py")
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.workers = 2  # type: ignore[misc]


def test_settings_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        RunSettings("train.py")  # type: ignore[misc]


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(TypeError, match="wrokers"):
        RunSettings(script="train.py", wrokers=2)  # type: ignore[call-arg]


def test_settings_travel_to_a_worker_as_json() -> None:
    worker = WorkerSettings(
        run=RunSettings(script="train.py", arguments=("--epochs", "3"), whole=("Clip",), steps=5),
        record="somewhere",
        rank=1,
        world=3,
        cores=(2, 3),
        gpus=("1", "0"),
    )
    text = msgspec.json.encode(worker)
    assert isinstance(json.loads(text), dict)
    assert msgspec.json.decode(text, type=WorkerSettings) == worker


def test_a_run_asks_for_one_worker_that_sees_the_batch_unless_told_otherwise() -> None:
    run = RunSettings(script="train.py")
    assert (run.workers, run.mods, run.batch, run.batch_dim, run.steps) == (1, (), "keep", 0, None)


# -- started by another launcher ---------------------------------------------------------------------------------------


def test_a_lone_process_is_a_run_of_one() -> None:
    found = from_environment({})
    assert (found.rank, found.world, found.local_rank, found.local_world) == (0, 1, 0, 1)


def test_the_environment_of_torchrun_is_understood() -> None:
    found = from_environment(
        {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "node0",
            "MASTER_PORT": "1234",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    )
    assert (found.rank, found.world, found.local_rank, found.local_world) == (5, 8, 1, 4)
    assert (found.store_host, found.store_port, found.agent_store) == ("node0", 1234, True)
    assert found.run.workers == 8


def test_without_local_ranks_all_workers_are_on_one_host() -> None:
    found = from_environment({"RANK": "2", "WORLD_SIZE": "3"})
    assert (found.local_rank, found.local_world) == (2, 3)


def test_settings_from_pacelines_launcher_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_given", None)  # undone afterwards
    monkeypatch.setenv("RANK", "2")
    assert settings.of_this_process().rank == 2
    given = WorkerSettings(run=RunSettings(script="train.py"), record="", rank=1, world=4)
    settings.use(given)
    assert settings.of_this_process() is given


# -- other variables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (None, None),
        ("0,1", ("0", "1")),
        (" 2 , 0 ", ("2", "0")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("GPU-abc,1", ("GPU-abc", "1")),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str | None, devices: tuple[str, ...] | None) -> None:
    environment = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert settings.visible_devices(environment) == devices


@pytest.mark.parametrize(
    ("text", "threads"), [(None, None), ("4", 4), ("4,2", 4), (" 3 ", 3), ("0", None), ("many", None), ("", None)]
)
def test_threads_that_the_user_asked_for(text: str | None, threads: int | None) -> None:
    assert settings.asked_threads({} if text is None else {"OMP_NUM_THREADS": text}) == threads


def test_only_variables_that_are_set_are_shown() -> None:
    environment = {"OMP_NUM_THREADS": "2", "RANK": "1", "HOME": "/nowhere"}
    assert settings.thread_environment(environment) == {"OMP_NUM_THREADS": "2"}
    assert settings.launcher_environment(environment) == {"RANK": "1"}


def test_reading_the_real_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    assert from_environment().rank == 3
    assert settings.visible_devices() == ("7",)
    assert settings.asked_threads() == 9
