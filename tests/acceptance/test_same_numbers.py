"""Same numbers: everything a script prints on N workers equals what plain Python prints.

One test a script of tests/scripts, number of workers and view; and some scripts under each other strategy (all of them
with `--corpus-under STRATEGY`; with `--corpus-under elastic`, worker 1 of an elastic run is killed in each). On two
workers all outputs of models stay sharded, on more the small ones are gathered at once, which is the default: numbers
must not depend on it. What the scripts expect is in their headers: see `corpus`.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from corpus import FOLDER, Script, difference, scripts, shape
from plain import PlainPython

from paceline import errors
from paceline.launch import Output, Zygote, launch
from paceline.record import read_run
from paceline.record.schema import Outcome
from paceline.script.redo import MADE_AGAIN
from paceline.settings import SMALL, RunSettings
from paceline.strategies import catalog
from paceline.wire.store import CANNOT

HERE = Path(__file__).parent
CHOSEN = HERE / "default_run.txt"  # names of cases: made by `choose.py`
# Strategies under which a part of the corpus runs, too.
OTHERS = ("zero1", "central", "sharded", "mesh(data=1,model=2)", "mesh(data=2,model=2)", "pipeline(stages=2)")
PRODUCTS = ("mesh(data=1,shard=2,model=2)", "mesh(data=1,pipe=2,model=2)", "mesh(data=1,pipe=2,shard=2)")
ELASTIC = "elastic"
# Scripts that other strategies run.
MAY_REFUSE = {"sharded", "mesh(data=1,model=2)", "mesh(data=2,model=2)", "pipeline(stages=2)", ELASTIC, *PRODUCTS}
EVERY = 12  # of the scripts
# Scripts of the default run under other strategies; they must not be refused, unless their headers say so.
NAMED = {
    "central": ("sparse_adam",),
    "sharded": ("hooks_at_first_call", "autograd_grad", "last_update_in_function", "factor_by_length"),
    "mesh(data=2,model=2)": ("clip_value", "dropout_everywhere", "micro_batches_by_hand"),
    "pipeline(stages=2)": ("inference_mode", "pruning"),
}
# Named, and not in the default run: tests/strategies/test_mesh_tokens.py trains with dropout on such a mesh.
LONG = {"dropout_everywhere-4-batch-mesh(data=2,model=2)"}
TEXT_FILES = (".txt", ".csv", ".json", ".jsonl", ".log")


@dataclass(frozen=True, slots=True)
class Case:
    script: Script
    workers: int
    view: str
    strategy: str = "mirrored"

    @property
    def name(self) -> str:
        under = "" if self.strategy == "mirrored" else f"-{self.strategy}"
        return f"{self.script.name}-{self.workers}-{self.view}{under}"

    @property
    def is_named(self) -> bool:
        return self.script.name in NAMED.get(self.strategy, ())

    @property
    def slow(self) -> bool:
        return self.script.slow or (self.view, self.workers) == ("slice", 3)


@dataclass(frozen=True, slots=True)
class Played:
    """What a script left: its standard output, and the files in its folder."""

    code: int
    out: str
    err: str
    folder: Path

    def files(self) -> dict[str, str]:
        """Names, and the content of those that hold text."""
        found = sorted(p for p in self.folder.rglob("*") if p.is_file())
        return {str(p.relative_to(self.folder)): p.read_text() if p.suffix in TEXT_FILES else "" for p in found}


class PlayedPlain:
    """Runs each script once in plain Python."""

    def __init__(self, plain: PlainPython, folder: Path) -> None:
        self._plain, self._folder = plain, folder
        self._played: dict[str, Played] = {}

    def play(self, script: Script) -> Played:
        if script.name not in self._played:
            folder = self._folder / script.name
            folder.mkdir()
            done = self._plain.run(folder, script.path, *script.arguments)
            self._played[script.name] = Played(done.returncode, done.stdout, done.stderr, folder)
        return self._played[script.name]


@pytest.fixture(scope="session")
def played(plain: PlainPython, tmp_path_factory: pytest.TempPathFactory) -> PlayedPlain:
    return PlayedPlain(plain, tmp_path_factory.mktemp("played"))


class Paceline:
    """Runs a script on workers, below a test's folder."""

    def __init__(self, zygote: Zygote, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._zygote, self.record, self.folder = zygote, folder / "record", folder / "work"
        self._monkeypatch = monkeypatch

    def play(self, case: Case) -> tuple[Played, Outcome]:
        self.folder.mkdir()
        self._monkeypatch.chdir(self.folder)
        streams, killed = {"stdout": b"", "stderr": b""}, list[int]()

        def on_event(event: object) -> None:
            if isinstance(event, Output):
                streams[event.stream] += event.data
                if case.strategy == ELASTIC and not killed:
                    killed.append(read_run(self.record).workers[1].pid)
                    os.kill(killed[0], signal.SIGKILL)

        outcome = launch(settings_of(case), zygote=self._zygote, record=self.record, on_event=on_event)
        out, err = (streams[name].decode() for name in ("stdout", "stderr"))
        return Played(outcome.exit_code, out, err, self.folder), outcome

    def log(self, rank: int) -> str:
        return (self.record / f"log.rank{rank}.txt").read_text()


@pytest.fixture
def paceline(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paceline:
    return Paceline(zygote, tmp_path, monkeypatch)


def settings_of(case: Case) -> RunSettings:
    options = _options(case.script.options)
    views = ("view=slice",) if case.view == "slice" else ()
    return RunSettings(
        script=str(case.script.path),
        arguments=case.script.arguments,
        workers=case.workers,
        strategy="mirrored" if case.strategy == ELASTIC else case.strategy,
        elastic=1 if case.strategy == ELASTIC else None,
        mods=(*views, *options.pop("mods", ())),
        gather_below=0 if case.view == "sharded" else SMALL,
        threads=1,
        stall_warning=80.0,  # longer than a busy machine keeps a worker from starting
        stall_abort=90.0,
        **options,
    )


def _options(words: tuple[str, ...]) -> dict[str, object]:
    """The options of a header as settings: the command line's own parsing is tested with the command line."""
    found: dict[str, object] = {}
    words_left = list(words)
    while words_left:
        match words_left.pop(0):
            case "--mod":
                found["mods"] = (words_left.pop(0),)
            case "--batch-dim":
                found["batch_dim"] = int(words_left.pop(0))
            case "--whole":
                found["whole"] = (words_left.pop(0),)
            case other:
                raise ValueError(f"A header has the option {other}, which this test doesn't know.")
    return found


def cases() -> Iterator[Case]:
    for script in scripts():
        for view in script.views:
            for workers in script.workers:
                yield Case(script, workers, "sharded" if view == "batch" and workers == 2 else view)


def cases_under(strategy: str, every: int) -> Iterator[Case]:
    batched = [script for script in scripts() if "batch" in script.views and 2 in script.workers]
    workers = 2 if strategy == ELASTIC else catalog.parse(strategy).workers or 2
    for number, script in enumerate(batched):
        if not number % every or script.name in NAMED.get(strategy, ()):
            yield Case(script, workers, "batch", strategy)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The default run takes the chosen ones; `make test-all` runs everything."""
    if "case" not in metafunc.fixturenames:
        return
    if (strategy := metafunc.config.getoption("corpus_under")) is not None:
        taken = list(cases_under(strategy, 1))
    else:
        taken = [*cases(), *(case for strategy in (*OTHERS, *PRODUCTS) for case in cases_under(strategy, EVERY))]
    chosen = set(CHOSEN.read_text().split())
    chosen |= {case.name for case in taken if case.is_named} - LONG
    if metafunc.config.option.markexpr == "not slow":  # a thousand cases that are made, and taken out again
        taken = [case for case in taken if case.name in chosen]
    marks = {case.name: [] if case.name in chosen else [pytest.mark.slow] for case in taken}
    metafunc.parametrize("case", [pytest.param(case, id=case.name, marks=marks[case.name]) for case in taken])


def test_prints_what_plain_python_prints(case: Case, played: PlayedPlain, paceline: Paceline) -> None:
    script, workers, view = case.script, case.workers, case.view
    expected = played.play(script)
    assert expected.code == 0, f"plain python fails: {expected.err}"
    found, outcome = paceline.play(case)
    may_refuse = case.strategy in MAY_REFUSE and not case.is_named
    if outcome.exit_code and (script.expects.endswith("refused") or may_refuse):
        _check_refusal(case, expected, found, outcome)
        return
    assert outcome.exit_code == 0, f"{outcome.message}\n--- printed before:\n{found.out[-2000:]}\n{found.err[-2000:]}"
    assert script.expects != "refused", (
        f"ran, and should have been refused, as {script.reason}; it printed:\n{found.out}"
    )
    if script.expects == "noticed" and any(script.reason in notice for notice in outcome.notices):
        assert not difference(shape(expected.out), shape(found.out), 0)
        return
    if script.expects in ("different", "agree", "agree-or-refused"):
        wrong = difference(shape(expected.out), shape(found.out), 0)
    else:
        printed = found.out
        if MADE_AGAIN in outcome.notices:  # lines of hooks may be there twice
            printed = _without_repeated(expected.out, printed, script.tolerance)
        wrong = difference(expected.out, printed, script.tolerance) or _files_difference(expected, found, script)
    assert not wrong, f"{script.path.name} on {workers} workers, {view} view: {wrong}\n{found.err}{outcome.notices}"
    assert found.err == "" or expected.err != "", f"on standard error, where plain python has nothing: {found.err}"
    if view != "slice" and not found.err and case.strategy != ELASTIC:  # logs of other ranks hold both streams
        _check_agreement(found, paceline, workers)


def _without_repeated(expected: str, found: str, tolerance: float) -> str:
    """The lines that were printed, without those that are not the next one of plain Python's."""
    awaited, kept = expected.splitlines(), list[str]()
    for line in found.splitlines():
        if len(kept) < len(awaited) and not difference(awaited[len(kept)], line, tolerance):
            kept.append(line)
    return "\n".join(kept)


def _files_difference(expected: Played, found: Played, script: Script) -> str:
    theirs, ours = expected.files(), found.files()
    if theirs.keys() != ours.keys():
        return f"files: plain python leaves {sorted(theirs)}, paceline {sorted(ours)}"
    for name, text in theirs.items():
        if wrong := difference(text, ours[name], script.tolerance):
            return f"file {name}, {wrong}"
    return ""


def _check_refusal(case: Case, expected: Played, found: Played, outcome: Outcome) -> None:
    """A refusal is an error about the script, in our words; and what was printed before it was right. Another strategy
    may find another reason."""
    script = case.script
    kind = re.match(r"raised (\w+)", outcome.cause)
    is_ours = kind and issubclass(getattr(errors, kind[1], type(None)), errors.ScriptError)
    is_ours = is_ours or (case.strategy == ELASTIC and CANNOT in outcome.message)
    assert is_ours, f"failed instead of being refused: {outcome.message}"
    assert "Traceback" not in outcome.message
    if script.expects == "refused" and case.strategy == "mirrored":
        assert script.reason in outcome.message
    if not script.expects.startswith("agree"):
        printed = found.out.splitlines()
        before = expected.out.splitlines()[: len(printed)]
        if printed and not found.out.endswith("\n"):  # refused in the middle of a line
            before[-1] = before[-1][: len(printed[-1])]
        wrong = difference("\n".join(before), found.out, script.tolerance)
        assert not wrong, f"wrong numbers were printed before the refusal: {wrong}\n{outcome.message}"


def _check_agreement(found: Played, paceline: Paceline, workers: int) -> None:
    """Every other worker printed, into its log, what rank 0 printed."""
    for rank in range(1, workers):
        log = paceline.log(rank)
        wrong = difference(found.out, log, 0)
        assert not wrong, f"rank {rank} went another way than rank 0 ('plain python' is rank 0 here): {wrong}"


def test_a_script_without_a_loader_does_not_take_the_slice_view_in_silence(paceline: Paceline) -> None:
    script = next(s for s in scripts() if s.path == FOLDER / "no_loader.py")
    _, outcome = paceline.play(Case(script, 2, "slice"))
    said = "\n".join([outcome.message, *outcome.notices])
    assert "slice" in said
    assert "DataLoader" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("loss 1.00000", "loss 1.00005", True),
        ("loss 1.0000", "loss 1.0002", False),
        ("step 3 loss 1.0", "step 4 loss 1.0", False),
        ("loss 1.0", "cost 1.0", False),
        ("3e-9", "-2e-9", True),
        ("nan", "nan", True),
        ("nan", "1.0", False),
        ("a 1.5\nb", "a 1.5", False),
    ],
)
def test_the_comparison_itself(one: str, other: str, same: bool) -> None:
    assert (difference(one, other, 1e-4) == "") is same
