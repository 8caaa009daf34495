"""Which worker speaks for the run: every byte is shown once, in order, whoever printed it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from paceline.launch.events import Output
from paceline.launch.voice import Voice

TEXT = bytes(range(60))


@given(st.integers(0, 2**32))
def test_every_byte_is_shown_once(seed: int) -> None:
    """Workers print the same text in pieces of any size, in any order; each one that speaks is lost at some point."""
    chance = random.Random(seed)
    workers = chance.randint(2, 4)
    printed, shown, voice = [0] * workers, b"", Voice()
    while voice.rank < workers:
        rank = chance.randint(voice.rank, workers - 1)
        if rank == voice.rank and rank < workers - 1 and chance.random() < 0.2:
            shown += b"".join(output.data for output in voice.move(rank + 1))
            continue
        size = chance.randint(1, 20)
        piece = TEXT[printed[rank] : printed[rank] + size]
        printed[rank] += len(piece)
        if piece and (output := voice.hear(Output(rank, "stdout", piece))) is not None:
            shown += output.data
        assert TEXT.startswith(shown)
        if voice.rank == workers - 1 and printed[voice.rank] == len(TEXT):
            break
    assert shown == TEXT


def test_streams_are_counted_apart() -> None:
    voice = Voice()
    voice.hear(Output(0, "stdout", b"ab"))
    voice.hear(Output(1, "stdout", b"abc"))
    voice.hear(Output(1, "stderr", b"x"))
    assert voice.move(1) == [Output(1, "stdout", b"c"), Output(1, "stderr", b"x")]
    assert voice.hear(Output(1, "stdout", b"d")) == Output(1, "stdout", b"d")
