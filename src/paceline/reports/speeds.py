"""Columns that several reports have."""

from __future__ import annotations

from paceline.reports.report import Column

HOW = "Samples divided by the trial's median step time after warm-up; median over rounds."
LOW, HIGH = Column("low", "low", "The slowest round.", "rate"), Column("high", "high", "The fastest round.", "rate")
SPEED = Column("samples_per_s", "samples/s", HOW, "rate", ends=(LOW, HIGH))
