"""Which number of a script's output is its accuracy."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.record.logged import Logged
from paceline.trials.converge.accuracy import compile_metric, find, find_logged


def last(*lines: str, metric: str | None = None) -> float | None:
    found = find([(line, None) for line in lines], re.compile(metric) if metric else None)
    return found[-1].value if found else None


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("acc: 0.71", 0.71),
        ("epoch 3 acc=0.5 loss=1.2", 0.5),
        ("test accuracy 0.712", 0.712),
        ("accuracy 71.2 %", 0.712),
        ("accuracy 71.2%", 0.712),
        ("Test set: Average loss: 0.0274, Accuracy: 9913/10000 (99%)", 0.9913),
        ("Accuracy of the network on the 10000 test images: 55 %", 0.55),
        (" * Acc@1 71.20 Acc@5 90.1", 0.712),
        ("epoch 1 loss 2.24 accuracy 0.16 test loss 2.03 test accuracy 0.321", 0.321),
        ("train_acc 0.99 val_acc 0.81", 0.81),
        ("val_acc 0.81 train_acc 0.99", 0.81),
        ("Validation Accuracy: 0.8", 0.8),
        ("Top-1: 0.66", 0.66),
        ("{'accuracy': 0.25, 'loss': 2.0}", 0.25),
        ("accuracy is 93 %", 0.93),
        ("accuracy 1.0", 1.0),
        ("acc 1e-1", 0.1),
        ("interval accuracy 0.3", 0.3),
    ],
)
def test_what_people_print(line: str, value: float) -> None:
    assert last(line) == pytest.approx(value)


@pytest.mark.parametrize(
    "line", ["loss 0.71", "accelerate 3", "accumulated 4 of 8", "accuracy", "access: 3", "space 3"]
)
def test_what_is_none(line: str) -> None:
    assert last(line) is None


def test_of_the_test_set_rather_than_of_training_and_the_last_one() -> None:
    assert last("test accuracy 0.6", "train accuracy 0.9") == 0.6
    assert last("train accuracy 0.8", "train accuracy 0.9") == 0.9
    assert last("accuracy 0.5", "train accuracy 0.9") == 0.5
    assert last("test acc 0.6", "test acc 0.7") == 0.7


def test_percentages_without_a_sign_are_known_from_one_above_one() -> None:
    found = find([("acc 0.9", None), ("acc 35", None), ("acc 71.5", None)], None)
    assert [reading.value for reading in found] == pytest.approx([0.009, 0.35, 0.715])


def test_nan_is_a_reading() -> None:
    assert math.isnan(last("accuracy nan") or 0.0)


def test_a_pattern_of_the_users() -> None:
    assert last("f1 0.5 acc 0.7", metric=r"f1 ([\d.]+)") == 0.5
    assert last("score: 55.5%", metric=r"score: ([\d.]+)") == pytest.approx(0.555)
    assert last("score: 55.5", metric=r"score: [\d.]+") == pytest.approx(0.555)
    assert last("acc 0.7", metric="nothing") is None
    with pytest.raises(UsageError, match="not a regular expression"):
        compile_metric("acc (")


@given(st.floats(0, 1), st.sampled_from(["acc", "accuracy", "Accuracy", "val_acc", "test accuracy"]),
       st.sampled_from([": ", "=", " ", " = ", ": \t"]))  # fmt: skip
def test_any_value_is_read_as_it_was_printed(value: float, name: str, between: str) -> None:
    assert last(f"epoch 1 {name}{between}{value:.6f} loss 0.3") == pytest.approx(value, abs=1e-6)


def test_what_was_logged() -> None:
    lines = [
        Logged(step=1, at=11.0, numbers={"accuracy": 0.5, "loss": 1.0}),
        Logged(step=2, at=12.0, numbers={"test_accuracy": 61.0}),
        Logged(step=3, at=14.0, numbers={"test_accuracy": None}),
    ]
    found = find_logged(lines, began=10.0)
    assert (found[0].value, found[0].seconds) == (0.61, 2.0)
    assert math.isnan(found[1].value)
    assert [reading.value for reading in find_logged(lines[:1], 10.0)] == [0.5]
    assert find_logged([], 0.0) == []
