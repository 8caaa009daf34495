"""Every error says what was asked and found, and what to type; and survives the way from a worker to the launcher."""

from __future__ import annotations

import inspect
import pickle

import pytest

from paceline import errors
from paceline.errors import PacelineError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_a_paceline_error(kind: type[Exception]) -> None:
    assert issubclass(kind, PacelineError)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_tree_is_drawn_in_the_docstring(kind: type[Exception]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.__doc__


def test_the_drawing_shows_who_derives_from_whom() -> None:
    """Each line's depth is that of its class."""
    drawn = [line for line in (errors.__doc__ or "").splitlines() if "Error" in line and line.startswith("    ")]
    for line in drawn:
        name = next(word for word in line.split() if word.endswith("Error"))
        depth = (line.index(name) - 4) // 4
        assert len(getattr(errors, name).__mro__) == len(PacelineError.__mro__) + depth, name
    assert len(drawn) == len(KINDS)


def test_advice_is_the_last_line_that_a_person_reads() -> None:
    error = PacelineError("Asked for 0 workers.", advice="Type: -n 1")
    assert str(error) == "Asked for 0 workers.\nType: -n 1"
    assert (error.message, error.advice) == ("Asked for 0 workers.", "Type: -n 1")


def test_without_advice_there_is_only_the_message() -> None:
    assert str(PacelineError("Lost.")) == "Lost."


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_can_be_sent_to_another_process(kind: type[PacelineError]) -> None:
    sent = pickle.loads(pickle.dumps(kind("what", advice="do this")))
    assert type(sent) is kind
    assert (sent.message, sent.advice, str(sent)) == ("what", "do this", "what\ndo this")
