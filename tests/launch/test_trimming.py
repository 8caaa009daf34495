"""Tracebacks look as they would in plain Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import paceline
from paceline.errors import PeerLostError, UsageError
from paceline.launch.failures.tracebacks import describe, stack_of

OURS = str(Path(paceline.__file__).parent / "somewhere.py")


def code(text: str, filename: str, **names: object) -> dict[str, object]:
    exec(compile(text, filename, "exec"), names)
    return names


def failure(call: object) -> BaseException:
    try:
        call()  # type: ignore[operator]
    except BaseException as error:
        return error.with_traceback(error.__traceback__.tb_next)  # type: ignore[union-attr]  # without this function
    raise AssertionError


def test_our_frames_are_taken_out_where_the_script_broke() -> None:
    script = code("def theirs():\n    1 / 0\n", "/home/me/train.py")
    ours = code("def ours():\n    theirs()\n", OURS, theirs=script["theirs"])
    outer = code("def outer():\n    ours()\n", "/home/me/train.py", ours=ours["ours"])
    told = describe(failure(outer["outer"]))
    assert OURS not in told.text
    assert told.text.count("/home/me/train.py") == 2
    assert told.summary == "ZeroDivisionError: division by zero"
    assert not told.consequence


def test_our_frames_stay_where_we_broke() -> None:
    ours = code("def ours():\n    1 / 0\n", OURS)
    assert OURS in describe(failure(ours["ours"])).text


def test_an_error_in_a_function_that_we_replaced_shows_the_scripts_line_and_how_to_see_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = code("def randn(size):\n    int(size)\n", OURS)
    script = code("def theirs():\n    randn('a')\n", "/home/me/train.py", randn=ours["randn"])
    text = describe(failure(script["theirs"])).text
    assert OURS not in text
    assert "/home/me/train.py" in text
    assert "PACELINE_TRACEBACK=full" in text
    monkeypatch.setenv("PACELINE_TRACEBACK", "full")
    assert OURS in describe(failure(script["theirs"])).text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("def f():\n    loss = 1\n    print(los)\n", "name 'los' is not defined. Did you mean: 'loss'?"),
        ("def f():\n    (1).bit_lenght\n", "'int' object has no attribute 'bit_lenght'. Did you mean: 'bit_length'?"),
        ("def f():\n    nothing_of_that_kind\n", "name 'nothing_of_that_kind' is not defined"),
    ],
)
def test_pythons_own_hints_are_kept(text: str, hint: str) -> None:
    told = describe(failure(code(text, "/home/me/train.py")["f"]))
    assert told.text.endswith(hint)
    assert told.text.count("Did you mean") == hint.count("Did you mean")
    assert told.summary.endswith(hint)


def test_a_script_with_a_mistake_in_its_syntax_is_told_as_python_tells_it() -> None:
    ours = code("def play():\n    compile('print(1', '/home/me/train.py', 'exec')\n", OURS)
    text = describe(failure(ours["play"])).text
    assert text.startswith('  File "/home/me/train.py", line 1\n')
    assert text.endswith("SyntaxError: '(' was never closed")


def test_the_cause_of_an_exception_is_trimmed_too() -> None:
    inner = code("def inner():\n    1 / 0\n", "/home/me/train.py")
    ours = code("def ours():\n    inner()\n", OURS, inner=inner["inner"])
    outer = code(
        "def outer():\n    try:\n        ours()\n    except Exception as e:\n        raise KeyError(3) from e\n",
        "/home/me/train.py",
        ours=ours["ours"],
    )
    text = describe(failure(outer["outer"])).text
    assert OURS not in text
    assert "ZeroDivisionError" in text
    assert text.endswith("KeyError: 3")


def test_an_error_of_ours_is_told_without_a_traceback() -> None:
    told = describe(UsageError("What was found.", advice="What to type."))
    assert told.text == "What was found.\nWhat to type."
    assert told.summary == "UsageError: What was found."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (RuntimeError("LoweringException: bad\n\nSet VERBOSE=1 for more."), "RuntimeError: LoweringException: bad"),
        (RuntimeError("backend='x' raised:\nKeyError: 'y'\n\nmore"), "RuntimeError: backend='x' raised: KeyError: 'y'"),
        (SyntaxError("invalid syntax", ("train.py", 3, 5, "a b", 3, 6)), "SyntaxError: invalid syntax"),
    ],
)
def test_an_exception_in_one_line_is_its_begin(error: Exception, line: str) -> None:
    assert describe(error).summary == line


def test_a_lost_peer_is_a_consequence_also_behind_another_error() -> None:
    assert describe(PeerLostError("gone")).consequence
    wrapped = RuntimeError("loader failed")
    wrapped.__cause__ = PeerLostError("gone")
    assert describe(wrapped).consequence
    assert not describe(RuntimeError("mine")).consequence


def test_a_very_long_traceback_keeps_both_ends() -> None:
    def raise_long() -> None:
        raise ValueError("\n".join(f"line {number}" for number in range(1000)))

    lines = describe(failure(raise_long)).text.splitlines()
    assert len(lines) < 210
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "line 999"


def test_a_stack_begins_with_the_script_and_ends_where_it_stands() -> None:
    innermost = code("import sys\ndef wait():\n    return sys._getframe()\n", OURS)
    script = code("def theirs():\n    return wait()\n", "/home/me/train.py", wait=innermost["wait"])
    frame = script["theirs"]()  # type: ignore[operator]
    text = stack_of(frame)
    assert OURS not in text
    assert "/home/me/train.py" in text.splitlines()[-1] or "/home/me/train.py" in text.splitlines()[-2]
    assert stack_of(sys._getframe())
