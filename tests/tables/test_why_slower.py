"""Why one run is slower than another, in words, from known figures."""

from __future__ import annotations

import msgspec

from paceline.tables.delays import Delay
from paceline.tables.figures import Figures
from paceline.tables.why_slower import compare


def made(
    speed: float, *, batch: int = 64, scatter: float = 0.02, slowest: Delay | None = None, **parts: float
) -> Figures:
    total = sum(parts.values())
    phases = dict.fromkeys(("data", "forward", "backward", "communication", "optimizer", "evaluation", "other"), 0.0)
    return Figures(
        steps=100, batch=batch, counted=90, step_time=total, samples_per_s=speed, low=speed * (1 - scatter),
        high=speed * (1 + scatter), step=phases | parts | {"total": total}, slowest=slowest,
        split=True,
    )  # fmt: skip


def test_the_phases_that_grew_are_named_with_their_share_largest_first():
    a = made(640, forward=0.04, backward=0.05, communication=0.01)
    b = made(427, forward=0.04, backward=0.049, communication=0.05, data=0.011)
    found = compare(a, b)
    assert found.clear
    assert found.sentences[0] == "B is 1.5× slower than A: 427 against 640 samples/s."
    assert found.sentences[1] == (
        "B takes 50 ms more per step than A: 40 ms in communication (+400 %) and 11 ms in data."
    )
    assert len(found.sentences) == 2, "1 ms less in backward is not worth a word"


def test_a_run_whose_parts_were_not_timed_is_compared_as_a_whole():
    """All of its time is in `other`: '25 ms less in other' named no cause."""
    a, b = made(640, other=0.1), made(1280, forward=0.03, backward=0.02)
    said = compare(msgspec.structs.replace(a, split=False), b).sentences
    assert said == [
        "B is 2× faster than A: 1,280 against 640 samples/s.",
        "Where the time goes is not known: the parts of a step of A were not timed.",
    ]


def test_what_went_the_other_way_is_named_too():
    a = made(640, forward=0.05, backward=0.05)
    b = made(1280, forward=0.055, backward=0.0)
    said = " ".join(compare(a, b).sentences)
    assert "B is 2× faster than A" in said
    assert "50 ms in backward (−100 %)" in said
    assert "Against that, B takes 5 ms more in forward." in said


def test_runs_with_different_batches_are_compared_per_sample():
    a, b = made(640, forward=0.1), made(1280, batch=256, forward=0.2)
    said = " ".join(compare(a, b, ("A", "C")).sentences)
    assert "C is 2× faster than A" in said
    assert "per 1,000 samples" in said
    assert "C takes 781 ms less" in said


def test_a_difference_within_the_scatter_is_none():
    found = compare(made(640, forward=0.1, scatter=0.2), made(600, forward=0.107, scatter=0.2))
    assert not found.clear
    assert "cannot be told apart" in found.sentences[0]
    assert len(found.sentences) == 1


def test_a_worker_that_the_others_wait_for_is_named():
    late = Delay(rank=3, own=0.1, behind=0.03, share=0.3, slow=True)
    said = compare(made(640, forward=0.1), made(400, forward=0.1, communication=0.06, slowest=late)).sentences
    assert "In B, rank 3 keeps the others waiting: 30 ms per step." in said


def test_a_run_without_steps_cannot_be_compared():
    found = compare(made(640, forward=0.1), Figures())
    assert found.times is None
    assert found.sentences == ["B made no step that can be timed."]


def test_without_samples_nothing_is_said_of_speed() -> None:
    """The steps of two runs may have batches of other sizes, and their scatter is that of samples a second."""
    found = compare(made(0, forward=0.1), made(400, forward=0.05))
    assert not found.clear
    assert found.sentences[-1] == "Not both count their samples, so which one is faster is not known."
