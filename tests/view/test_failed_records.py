"""Records of runs and series that failed: the cause is said once, in full, where a person looks for it."""

from __future__ import annotations

import html
import re

import msgspec
from verb_records import on_cpu
from view_records import make_run, make_sweep

from paceline.record import Outcome
from paceline.record.schema import FailureKind
from paceline.trials.sweep.search import Ceiling, Verdict

SYNTAX = """  File "/home/me/bad.py", line 1
    def f(:
          ^
SyntaxError: invalid syntax"""


def test_an_error_in_the_syntax_keeps_its_indentation(tmp_path, client_of):
    message = f"Worker 0 on node1 failed:\n{SYNTAX}\nIts log: {tmp_path}/log.rank0.txt"
    outcome = Outcome(
        exit_code=1, seconds=2.0, failed_rank=0, kind=FailureKind.RAISED, error="SyntaxError",
        cause="raised SyntaxError: invalid syntax", message=message,
    )  # fmt: skip
    on_cpu(make_run(tmp_path / "bad", ranks=1, steps=3, outcome=outcome))
    page = client_of(tmp_path).get("/run/bad").text
    (code,) = (text for text in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL) if "SyntaxError" in text)
    assert html.unescape(code).rstrip() == SYNTAX
    assert "Its log: " in page


def test_a_sweep_that_measured_nothing_says_why_and_shows_no_empty_table(tmp_path, client_of):
    why = "--mod batch=x1: the script trains without a DataLoader."
    folder = make_sweep(tmp_path / "sweep")
    verdict = Verdict(
        workers=1,
        mods=[],
        own=None,
        points=[],
        knee=None,
        best=None,
        largest=None,
        ceiling=Ceiling.UNSUPPORTED,
        why=why,
    )
    (folder / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    page, runs = (client_of(tmp_path).get(path).text for path in ("/run/sweep", "/"))
    assert f"The sweep stopped: {why}<" in page, "one full stop"
    assert "No rows" not in page
    assert why in runs
