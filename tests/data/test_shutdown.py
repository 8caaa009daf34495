"""A script that ends in the middle of a pipeline: its threads have ended before the interpreter does."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import atexit, sys, threading

@atexit.register  # the first one is called last
def tell() -> None:
    print("left:", [thread.name for thread in threading.enumerate() if thread.name.startswith("paceline-")])

import numpy as np
import paceline.data as pd

begun = threading.Event()

def busy(number):
    begun.set()
    return np.full(1000, number).sum()

stream = pd.arrays(np.arange(1000)).repeat().{stages}
loop = iter(stream)
next(loop)
begun.wait()
names = {{thread.name for thread in threading.enumerate()}}
assert any(name.startswith("paceline-") for name in names), names
{ending}
"""


STAGES = [
    "map(busy).prefetch(4)",
    "map(busy, kind='threads', parallel=2).batch(8)",
    "map(busy, kind='threads', parallel=2).batch(8).prefetch(2)",
]
ENDINGS = ["", "sys.exit(0)", "kept = loop, lambda: stream"]


@pytest.mark.parametrize(
    ("stages", "ending"),
    [
        pytest.param(stages, ending, marks=[] if number == other == 2 else [pytest.mark.slow])
        for number, stages in enumerate(STAGES)
        for other, ending in enumerate(ENDINGS)
    ],
)
def test_no_thread_is_left(stages: str, ending: str) -> None:
    script = textwrap.dedent(SCRIPT).format(stages=stages, ending=ending)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left: []\n", "")
