"""Mesh: the examples print what plain Python prints, on every layout of workers."""

from __future__ import annotations

import io
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from paceline.launch import Output, Zygote, launch
from paceline.settings import RunSettings
from paceline.strategies import catalog

EXAMPLES = Path(__file__).parents[2] / "examples"
# Logits of the GPT are larger than --gather-below: they stay split.
ARGUMENTS = {
    "cnn.py": "--train-size 256 --test-size 128 --epochs 2 --batch-size 64 --dropout 0.2 --log-every 1",
    "gpt.py": "--layers 2 --width 32 --heads 2 --tokens 16 --words 100 --batch-size 16 --train-size 64 --test-size 32 "
    "--epochs 2 --dropout 0.1 --log-every 1",
}
SHORT = (
    "--layers 1 --width 16 --heads 2 --tokens 16 --words 100 --batch-size 16 --train-size 32 --test-size 16 --epochs 1"
)
TOLERANCE = 1e-4  # of float32, as in the corpus


def numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"\d+\.?\d*(?:e-?\d+)?", text)]


def printed(script: str, arguments: tuple[str, ...], patch: pytest.MonkeyPatch) -> str:
    """What the script prints in this process, which knows nothing of workers."""
    patch.setattr(sys, "argv", [script, *arguments])
    patch.syspath_prepend(str(EXAMPLES))
    out = io.StringIO()
    with redirect_stdout(out):
        runpy.run_path(script, run_name="__main__")
    return out.getvalue()


def check(name: str, arguments: str, strategy: str, folder: Path, zygote: Zygote, patch: pytest.MonkeyPatch) -> None:
    script, given = str(EXAMPLES / name), tuple(arguments.split())
    patch.chdir(folder)
    plain = printed(script, given, patch)
    workers, said = catalog.parse(strategy).workers, list[bytes]()
    assert workers is not None

    def on_event(event: object) -> None:
        if isinstance(event, Output) and event.stream == "stdout":
            said.append(event.data)

    run = RunSettings(script=script, arguments=given, workers=workers, strategy=strategy, threads=1)
    outcome = launch(run, zygote=zygote, record=folder / "record", on_event=on_event)
    assert outcome.exit_code == 0, outcome.message
    found = b"".join(said).decode()
    assert re.sub(r"[\d.e-]+", "#", found) == re.sub(r"[\d.e-]+", "#", plain)
    assert numbers(found) == pytest.approx(numbers(plain), rel=TOLERANCE)


def test_a_small_gpt_prints_what_plain_python_prints(
    tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    check("gpt.py", f"{SHORT} --epochs 1 --log-every 1", "mesh(data=1,model=2)", tmp_path, zygote, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["data=2,model=1", "data=1,model=2", "data=2,model=2", "data=2,shard=2"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_examples_print_what_plain_python_prints_on_a_mesh(
    name: str, axes: str, tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, ARGUMENTS[name], f"mesh({axes})", tmp_path, zygote, monkeypatch)
