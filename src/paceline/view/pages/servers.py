"""The page of parameter servers: how stale the workers' updates were, and what each server did."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from paceline.charts.chart import Axis, Bars, Chart
from paceline.record.servers import ServerReport, read_reports
from paceline.reports.report import Column, Sentence
from paceline.units import count
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Grid

MOST = 200  # bars; staler updates share the last one
SERVERS = 64


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    reports = read_reports(record.folder)[:SERVERS]
    blocks: list[Block] = [Sentence(text, "warn") for text in _troubles(reports)]
    if any(report.staleness for report in reports):
        blocks.append(histogram(reports))
    blocks.append(_grid(reports))
    return Page(title="Servers", blocks=blocks)


def histogram(reports: list[ServerReport]) -> Chart:
    """The staleness of all updates: one bar for each staleness, and one colour for each server."""
    stalest = min(MOST, max(max(report.staleness, default=0) for report in reports))
    series = []
    for report in reports:
        updates = [0] * (stalest + 1)
        for staleness, number in report.staleness.items():
            updates[min(max(staleness, 0), stalest)] += number
        series.append(
            Bars(
                name=f"server {report.server}",
                x=[f"{at}+" if at == MOST else str(at) for at in range(stalest + 1)],
                y=[float(number) for number in updates],
                colour=("accent", "ink")[report.server % 2],
            )
        )
    return Chart(
        name="staleness",
        title="Staleness of the updates",
        caption="How many other updates a server made between a worker's pull and the update by the gradients that the "
        "worker computed from it. 0 is what a synchronous run has.",
        x=Axis(title="staleness", kind="category"),
        y=Axis(title="updates", zero=True),
        series=series,
        stacked=True,
        wide=True,
    )


def _troubles(reports: list[ServerReport]) -> list[str]:
    found = []
    for report in reports:
        if report.starts > 1:
            lost = f"{count(report.lost, 'update')} {'was' if report.lost == 1 else 'were'} lost"
            found.append(f"Server {report.server} was started {report.starts} times; the last time, {lost}.")
        if report.refused:
            found.append(
                f"Server {report.server} refused {count(report.refused, 'connection')} without the run's keys."
            )
    return found


def _grid(reports: list[ServerReport]) -> Grid:
    rows = []
    for report in reports:
        made = sum(report.staleness.values())
        mean = sum(at * number for at, number in report.staleness.items()) / made if made else None
        rows.append(msgspec.to_builtins(report) | {"mean": mean, "most": max(report.staleness, default=None)})
    return Grid(
        name="servers",
        title=count(len(reports), "server"),
        columns=(
            Column("server", "server", "Number of the server.", "count"),
            Column("bytes", "parameters", "Size of the parameters that the server holds.", "bytes"),
            Column("updates", "updates", "Updates made.", "count"),
            Column("mean", "mean staleness", "Mean over the server's updates.", "number"),
            Column("most", "most", "The largest staleness of an update.", "count"),
            Column("dropped", "dropped", "Gradients that came after their round.", "count", optional=True),
            Column("duplicates", "sent twice", "Pushes that came twice; applied once.", "count", optional=True),
            Column("starts", "starts", "How often the server was started.", "count"),
            Column("lost", "lost", "Updates lost in the last restart.", "count", optional=True),
            Column("refused", "refused", "Connections without the run's keys.", "count", optional=True),
            Column("malformed", "malformed", "Messages that made no sense.", "count", optional=True),
        ),
        rows=rows,
    )
