"""Runs that start again: when, and from where."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.checkpoint.manifest import NAME
from paceline.launch.events import Event, Notice
from paceline.launch.host import HostLostError
from paceline.launch.restarts import with_restarts
from paceline.record import Outcome
from paceline.record.schema import FailureKind
from paceline.settings import RunSettings, SaveSettings


class Attempts:
    """Each loses a host, or ends well."""

    def __init__(self, folder: Path, *lost: str) -> None:
        self.folder, self._lost, self.told = folder, list(lost), list[str]()
        self.resumed: list[str] = []
        self.saves = self.loses_workers = False

    def __call__(self, run: RunSettings) -> Outcome:
        assert run.saving is not None
        self.resumed.append(run.saving.resume)
        if self.saves:
            self.folder.mkdir(exist_ok=True)
            (self.folder / NAME).touch()
        if self._lost and self.loses_workers:
            rank = int(self._lost.pop(0))
            return Outcome(exit_code=137, seconds=1.0, failed_rank=rank, kind=FailureKind.KILLED, message="killed")
        if self._lost:
            raise HostLostError(self._lost.pop(0), range(2, 3), "it has not answered for 10 s")
        return Outcome(exit_code=0, seconds=1.0)

    def play(self, record: Path, *, most: int | None) -> Outcome:
        def tell(event: Event) -> None:
            assert isinstance(event, Notice)
            self.told.append(event.text)

        run = RunSettings(script="train.py", workers=3, most=most, saving=SaveSettings(folder=str(self.folder)))
        return with_restarts(run, record, tell, self)


def test_a_host_lost_before_the_first_save_means_a_new_beginning(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "saves", "c", "b")
    assert attempts.play(tmp_path, most=3).exit_code == 0
    assert attempts.resumed == ["", "", ""]
    assert sum("starts again from the beginning" in text for text in attempts.told) == 2


def test_a_host_that_is_lost_again_ends_the_run(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "saves", "c", "c")
    with pytest.raises(HostLostError):
        attempts.play(tmp_path, most=3)
    assert len(attempts.resumed) == 2


@pytest.mark.parametrize(("lost", "code", "starts"), [("12", 0, 3), ("11", 137, 2)])
def test_a_worker_lost_before_the_first_save_means_a_new_beginning_once(
    tmp_path: Path, lost: str, code: int, starts: int
) -> None:
    """With a strategy whose workers cannot go on without it."""
    attempts = Attempts(tmp_path / "saves", *lost)
    attempts.loses_workers = True
    assert attempts.play(tmp_path, most=3).exit_code == code
    assert attempts.resumed == [""] * starts


def test_a_run_that_is_not_elastic_ends_at_once(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "saves", "c")
    with pytest.raises(HostLostError):
        attempts.play(tmp_path, most=None)
    assert attempts.resumed == [""]


def test_after_a_save_it_goes_on_from_there(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "saves", "c")
    attempts.saves = True
    assert attempts.play(tmp_path, most=3).exit_code == 0
    assert attempts.resumed == ["", str(attempts.folder)]
