"""Times, sizes and rates read well at every size, also where rounding would change the unit."""

import pytest

from paceline.units import count, parse_size, percent, rate, seconds, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"), (1.6e-6, "1.6 µs"), (123.4e-6, "123 µs"), (999.7e-6, "1 ms"), (12.34e-3, "12.3 ms"),
        (0.9996, "1 s"), (12.345, "12.3 s"), (99.96, "100 s"), (1234.5, "1,234 s"), (-0.5, "-500 ms"),
    ],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1.234, "1.23"), (99.96, "100"), (123.4, "123"), (1e6, "1,000,000")]
)
def test_rates(value: float, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1536, "1.5 KiB"),
        (1023 << 10, "1,023 KiB"),
        (256 << 20, "256 MiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2GB", 2 << 30),
        ("512 MiB", 512 << 20),
        ("1.5k", 1536),
        ("7", 7),
        ("1T", 1 << 40),
        ("", None),
        ("x", None),
        ("2 G B", None),
    ],
)
def test_sizes_as_typed(text: str, value: int | None) -> None:
    assert parse_size(text) == value


def test_shares_and_counts() -> None:
    assert (percent(0.1234), percent(0.1234, digits=0)) == ("12.3 %", "12 %")
    assert (count(1, "step"), count(2000, "step")) == ("1 step", "2,000 steps")
