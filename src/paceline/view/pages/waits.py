"""The page of waits: lines of the script that make the host wait for the device, and time by module."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from paceline.errors import TraceError
from paceline.reports.profile import waits_table
from paceline.reports.report import Column, Sentence
from paceline.tables.modules import modules
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Grid
from paceline.view.ui.traced import head, profile_of


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    profile = profile_of(record)
    blocks: list[Block] = [*head(record), Grid.of(waits_table(profile, profile.waits))]
    if any(trace.has_stack for trace in record.tables.traces):
        try:
            blocks.append(_modules(record))
        except TraceError as error:
            blocks.append(Sentence(error.message, "warn", error.advice))
    return Page(title="Waits", blocks=blocks)


def _modules(record: Opened) -> Grid:
    steps = max(profile_of(record).steps * profile_of(record).ranks, 1)
    figures = ("host_forward", "host_backward", "device_forward", "device_backward")
    table = (
        record.once("Finding the modules", lambda: record.tables.over_ranks(modules))
        .group_by("module")
        .agg(pl.col("calls").sum() / steps, *(pl.col(name).sum() / steps for name in figures))
        .sort(["device_forward", "host_forward", "module"], descending=[True, True, False])
    )
    how = "Self time of the ops that this module called, without its submodules; mean per step and rank."
    return Grid(
        name="modules",
        title="Modules",
        columns=(
            Column("module", "module", "Path of the module, from torch's stack."),
            Column("calls", "calls", "Mean per step and rank.", "count"),
            *(Column(name, name.replace("_", " "), how, "seconds") for name in figures),
        ),
        rows=table.to_dicts(),
    )
