"""A JAX script on two workers, with `--as jax`. Skipped where JAX is not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
jax.distributed.initialize()
mine = jnp.ones(2) * (1 + jax.process_index())
print(jax.process_count(), multihost_utils.process_allgather(mine).tolist())
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_two_processes_of_jax_meet(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    line = [sys.executable, "-m", "paceline", "run", "-n", "2", "--as", "jax", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "2 [[1.0, 1.0], [2.0, 2.0]]" in done.stdout
    assert "alone" not in done.stderr
