"""Each verb's report on a terminal, on a page and as a drawing: all of them tell the same."""

from __future__ import annotations

import io
import json
from html import unescape
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from verb_records import make_each_verb

from paceline.charts.svg import write_svg
from paceline.reports.report import Report, Sentence, Words
from paceline.reports.terminal import show
from paceline.reports.verdicts import VERBS
from paceline.reports.wording import NOTHING, say
from paceline.view.pages.series import report_of
from paceline.view.records.contents import SERIES
from paceline.view.records.library import Library
from paceline.view.records.record import Opened


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reports") / "paceline-runs"
    make_each_verb(folder)
    return folder


def opened(root: Path, verb: str) -> tuple[Opened, Report]:
    record = Library(root).open(verb)
    return record, report_of(VERBS[verb].read(record.verdict), record)


def printed(report: Report, width: int) -> str:
    shown = io.StringIO()
    show(Console(file=shown, width=width, highlight=False, markup=False), report)
    return shown.getvalue()


def sentences(report: Report) -> list[str]:
    said = [each.text for each in (*report.said, *report.after) if isinstance(each, Sentence)]
    return said + [line for each in report.said if isinstance(each, Words) for line in each.lines]


def test_every_verb_of_trials_has_a_report():
    assert set(VERBS) == set(SERIES)


@pytest.mark.parametrize("verb", VERBS)
def test_page_and_terminal_say_the_same_sentences(root, client_of, verb):
    record, report = opened(root, verb)
    page = unescape(client_of(root).get(f"/run/{verb}").text)
    told = " ".join(printed(report, 80).split())
    headline = VERBS[verb].headline(VERBS[verb].read(record.verdict))
    for sentence in sentences(report):
        assert " ".join(sentence.split()) in told
        assert sentence.replace("`", "") in page.replace("<code>", "").replace("</code>", "") or headline in sentence
    assert headline[1:] in page
    assert all(figure.label in page and figure.value in page for figure in report.figures)


@pytest.mark.parametrize("verb", VERBS)
def test_page_and_terminal_show_the_same_numbers(root, client_of, verb):
    _, report = opened(root, verb)
    page, told = client_of(root).get(f"/run/{verb}").text, printed(report, 200)
    shared = [table for table in report.tables if not table.on]
    shared += [table for table in report.tables if table.on == "page" and verb == "bandwidth" and table.name == "pairs"]
    assert shared
    for table in shared:
        columns = [column for column in table.columns if not column.on and not column.spare]
        assert columns
        for row in table.rows:
            for column in columns:
                words = str(row[column.text]) if column.text else say(row.get(column.key), column.kind)
                if words not in (NOTHING, ""):
                    assert words in told
                    assert words in unescape(page)


@pytest.mark.parametrize("verb", VERBS)
def test_tables_fit_a_terminal_of_80_columns(root, verb):
    _, report = opened(root, verb)
    told = printed(Report(tables=report.tables), 80)
    assert told.strip()
    assert max(map(len, told.splitlines())) <= 80
    for table in report.tables:
        for column in table.columns:
            if column.on != "page" and not column.spare and not column.wide and table.on != "page":
                words = [str(row.get(column.text) or say(row.get(column.key), column.kind)) for row in table.rows]
                assert all(word in told for word in " ".join(words).split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_chart_is_drawn_into_the_record(root, tmp_path, verb):
    _, report = opened(root, verb)
    assert report.charts
    write_svg(report.charts, tmp_path / "all.svg", title=verb)
    assert all(chart.title in unescape((tmp_path / "all.svg").read_text()) for chart in report.charts)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verdict_is_read_as_it_was_written(root, verb):
    """What --json prints and verdict.json holds is what the report is made of."""
    verdict = VERBS[verb].read(json.loads((root / verb / "verdict.json").read_text()))
    assert VERBS[verb].read(json.loads(msgspec.json.encode(verdict))) == verdict
