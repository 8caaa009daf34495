"""Scripts on real workers, all forked from one zygote."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from silent import silent  # noqa: F401 - a fixture

from paceline.launch import Event, Notice, Output, Stall, Zygote, launch
from paceline.record.schema import Outcome
from paceline.script.draws import table
from paceline.script.draws.rows import Draws
from paceline.settings import RunSettings


@dataclass
class Played:
    """What a script left behind, and what a person saw of it."""

    folder: Path
    record: Path
    outcome: Outcome
    printed: str
    notices: list[str] = field(default_factory=list)
    stalls: list[str] = field(default_factory=list)

    def log(self, rank: int) -> str:
        return (self.record / f"log.rank{rank}.txt").read_text()

    @property
    def well(self) -> Played:
        assert self.outcome.exit_code == 0, self.outcome.message
        return self


@pytest.fixture
def play(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    """`play(text, workers=2, **settings)` runs a script as `paceline run` does."""

    def play(text: str, workers: int = 2, **settings: object) -> Played:
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text))
        events: list[Event] = []
        run = RunSettings(script=str(script), workers=workers, threads=1, **settings)  # type: ignore[arg-type]
        outcome = launch(run, zygote=zygote, record=tmp_path / "record", on_event=events.append)
        printed = b"".join(e.data for e in events if isinstance(e, Output) and e.stream == "stdout").decode()
        return Played(
            folder,
            tmp_path / "record",
            outcome,
            printed,
            [e.text for e in events if isinstance(e, Notice)],
            [e.text for e in events if isinstance(e, Stall)],
        )

    return play


@pytest.fixture
def draws() -> Iterator[Draws]:
    """The random functions of torch, patched during the test."""
    made = Draws()
    remove = table.find(made)
    yield made
    remove()
