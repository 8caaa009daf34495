"""Parts that the pages of verdicts share."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from paceline.errors import RecordError
from paceline.view.records.record import Opened
from paceline.view.ui.grid import Column

T = TypeVar("T")


def as_verdict(record: Opened, kind: type[T]) -> T:
    """The record's verdict. Raises RecordError if verdict.json is not of this kind."""
    try:
        return msgspec.convert(record.verdict, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordError(
            f"{record.folder.file('verdict.json')} is not a verdict of {record.run.verb}: {error}."
        ) from error


SPEED = Column(
    key="samples_per_s",
    title="samples/s",
    how="Samples divided by the trial's median step time after warm-up; median over rounds.",
    kind="rate",
)
LOW = Column(key="low", title="low", how="The slowest round.", kind="rate")
HIGH = Column(key="high", title="high", how="The fastest round.", kind="rate")
