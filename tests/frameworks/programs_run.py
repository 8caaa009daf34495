"""One program of a framework, run by plain Python and by `paceline run`, and what comes of the comparison.

A program's first lines describe it:

    # framework: transformers
    # package: transformers       (for its version; default: the framework's name)
    # program: `Trainer`, BERT with dropout
    # tolerance: 2e-2 bfloat16     (optional: relative, and why; default: 1e-4)
    # vision: yes                  (optional: needs torchvision)
    # mask: \\d+ms/step           (optional: a pattern of printed times, which differ from run to run)

Verdicts:

    same                  everything printed is the same, to 1e-4 relative, and work was split
    same, whole           everything printed is the same; a notice says that nothing, or not all, was split
    refused               Paceline's error about the script, before a wrong number was printed
    different             a printed number or word differs
    crash                 a traceback, or an end without a reason
    hang                  no end within the time limit
    not run               plain Python fails, too
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "acceptance"))
from corpus import difference

from paceline import errors

TOLERANCE = "1e-4"  # relative, as in tests/acceptance
LIMIT = 240.0  # seconds: programs take some seconds, on a busy machine some more
VISION = Path(sys.prefix) / "vision"
WRONG = ("different", "crash", "hang")
_HEADER = re.compile(r"^# (framework|package|program|tolerance|mask|vision): (.*)$", re.MULTILINE)
_WHOLE = ("whole", "no faster")  # words of the notices that say that a module was not split
# A program is asked for the same numbers, so it must not report elsewhere or look for models in the network.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "KERAS_BACKEND": "torch",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
    "TQDM_DISABLE": "1",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and what its first lines say of it."""

    path: Path
    framework: str
    package: str
    title: str
    tolerance: str
    mask: str
    vision: bool  # needs torchvision, which other programs must not find: see vision-requirements.txt


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a program."""

    program: Program
    verdict: str
    reason: str
    seconds: tuple[float, float]
    output: str  # for a person who looks into it


@dataclass(frozen=True, slots=True)
class _Ended:
    code: int | None  # None: it had to be stopped
    out: str
    err: str
    seconds: float


def read(path: Path) -> Program:
    header = dict(_HEADER.findall(path.read_text()))
    framework = header["framework"]
    return Program(
        path,
        framework,
        header.get("package", framework),
        header["program"],
        header.get("tolerance", TOLERANCE),
        header.get("mask", ""),
        "vision" in header,
    )


def run(program: Program, workers: int = 2) -> Row:
    """Runs the program both ways, each in an empty folder."""
    more = {"PYTHONPATH": str(VISION)} if program.vision else {}
    with tempfile.TemporaryDirectory() as folder:
        plain = _run([sys.executable, str(program.path)], Path(folder, "plain"), more)
        if plain.code != 0:
            return Row(program, "not run", f"plain Python: {_last_line(plain.err)}", (plain.seconds, 0), plain.err)
        here = Path(folder, "paceline")
        command = [sys.executable, "-m", "paceline", "run", "-n", str(workers), str(program.path)]
        ours = _run(command, here, more)
        ends = (_masked(ended, program.mask) for ended in (plain, ours))
        verdict, reason = _judge(*ends, _outcome(here), float(program.tolerance.split()[0]))
        said = f"--- plain\n{plain.out}\n--- paceline\n{ours.out}\n{ours.err}"
        return Row(program, verdict, reason, (plain.seconds, ours.seconds), said)


def _judge(plain: _Ended, ours: _Ended, outcome: dict, tolerance: float) -> tuple[str, str]:
    if ours.code is None:
        return "hang", f"no end after {LIMIT:g} s"
    printed = ours.out.splitlines()
    if ours.code != 0:
        error = getattr(errors, outcome.get("error", ""), None)
        if not (isinstance(error, type) and issubclass(error, errors.ScriptError)):
            return "crash", _last_line(outcome.get("message") or ours.err)
        before = "\n".join(plain.out.splitlines()[: len(printed)])
        if wrong := difference(before, ours.out, tolerance):
            return "different", f"before the refusal, {wrong}"
        return "refused", _reason(outcome["message"])
    if wrong := difference(plain.out, ours.out, tolerance):
        return "different", wrong
    notices = outcome.get("notices", [])
    told = [notice for notice in notices if any(word in notice for word in _WHOLE)]
    if told:
        return "same, whole", " ".join(map(_reason, told))
    return "same", " ".join(map(_reason, notices))


def _masked(ended: _Ended, mask: str) -> _Ended:
    return replace(ended, out=re.sub(mask, "", ended.out)) if mask else ended


def _run(command: list[str], folder: Path, more: dict[str, str]) -> _Ended:
    folder.mkdir()
    began = time.monotonic()
    out, err = folder.with_suffix(".out"), folder.with_suffix(".err")
    with out.open("w") as o, err.open("w") as e:
        surroundings = {**os.environ, **SURROUNDINGS, **more}
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=o, stderr=e, env=surroundings)
        try:
            code: int | None = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher stops its workers
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            code = None
    return _Ended(code, out.read_text(), err.read_text(), time.monotonic() - began)


def _outcome(folder: Path) -> dict:
    """How the record says that the run ended."""
    for file in folder.glob("paceline-runs/*/run.json"):
        return json.loads(file.read_text())["outcome"] or {}
    return {}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Its log:")]
    return lines[-1] if lines else ""


def _reason(message: str) -> str:
    """The first sentence of an error or a notice, with the cause that follows a colon."""
    lines = [line.strip() for line in message.splitlines() if not re.match(r"Worker \d+ on .* failed:$", line)]
    return re.split(r"(?<=\.)\s(?=[A-Z])", next(filter(None, lines), ""))[0]
