"""Ctrl-C before a verb has begun: two words, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("module", "who"),
    [("typer", "the command line"), ("torch", "the process that forks the workers")],
)
def test_ctrl_c_while_a_run_starts_shows_no_traceback(tmp_path: Path, module: str, who: str) -> None:
    """It comes while the command line, or the process that forks the workers, imports this module."""
    (tmp_path / f"{module}.py").write_text(f"import os\nos.kill(os.getpid(), {int(signal.SIGINT)})\nimport no_such\n")
    (tmp_path / "train.py").write_text("")
    run = [sys.executable, "-m", "paceline", "run", "-n", "1", "train.py"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{SOURCE}"}
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert "Traceback" not in done.stderr, who
    if module == "typer":
        assert (done.returncode, done.stderr) == (130, "paceline: interrupted\n")
    else:
        assert "was killed by SIGINT" in done.stderr
