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


def test_the_last_lines_of_a_lost_worker_are_shown_where_each_prints_what_it_wants() -> None:
    """They may be read from its pipe after its end was noticed."""
    voice = Voice(alike=False)
    assert voice.hear(Output(1, "stdout", b"not shown")) is None
    voice.move(1)
    late = Output(0, "stdout", b"late")
    assert voice.hear(late) == late
    assert voice.hear(Output(2, "stdout", b"not shown")) is None
    assert voice.hear(Output(1, "stdout", b"x")) == Output(1, "stdout", b"x")


@given(st.integers(0, 2**32))
def test_every_line_is_shown_once_where_numbers_differ(seed: int) -> None:
    """In the slice view: lines have numbers of the worker's own slice, of any length."""
    chance = random.Random(seed)
    workers = chance.randint(2, 4)
    texts = [b"".join(b"%d %d\n" % (line, chance.randrange(2000)) for line in range(20)) for _ in range(workers)]
    printed, shown, voice, whole = [0] * workers, b"", Voice(by_lines=True), True
    while not (voice.rank == workers - 1 and printed[voice.rank] == len(texts[voice.rank])):
        rank = chance.randint(voice.rank, workers - 1)
        if rank == voice.rank and rank < workers - 1 and chance.random() < 0.2:
            whole = whole and shown.endswith(b"\n")
            shown += b"".join(output.data for output in voice.move(rank + 1))
            continue
        piece = texts[rank][printed[rank] : printed[rank] + chance.randint(1, 20)]
        printed[rank] += len(piece)
        if piece and (output := voice.hear(Output(rank, "stdout", piece))) is not None:
            shown += output.data
    lines = shown.splitlines(keepends=True)
    assert len(lines) == 20
    if whole:  # nobody was lost in the middle of a line
        assert all(line in {text.splitlines(keepends=True)[n] for text in texts} for n, line in enumerate(lines))


def test_a_line_that_was_begun_is_ended_by_the_next_worker() -> None:
    voice = Voice(by_lines=True)
    voice.hear(Output(0, "stdout", b"loss 1\nhits 12"))
    voice.hear(Output(1, "stdout", b"loss 1\nhits 9\nloss 2\n"))
    assert voice.move(1) == [Output(1, "stdout", b"\nloss 2\n")]
