"""How a finding is put into words."""

from __future__ import annotations

import pytest

from paceline.advise.finding import in_sentences


@pytest.mark.parametrize(
    ("advice", "numbers", "told"),
    [
        ("by hand: x.half()", "The numbers change.", "by hand: x.half(). The numbers change."),
        ("Add workers.", "The numbers change.", "Add workers. The numbers change."),
        ("Add workers.", "", "Add workers."),
        ("", "The numbers change.", "The numbers change."),
    ],
)
def test_the_advice_and_the_change_of_numbers_are_two_sentences(advice, numbers, told):
    assert in_sentences(advice, numbers) == told
