"""What a terminal makes of a report: each thing that a report can declare, once."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paceline.reports.report import Column, Command, Figure, Report, Sentence, Table, Text, Words
from paceline.reports.terminal import MOST_LINES, show


def printed(report: Report, *, width: int = 80, quiet: bool = False) -> list[str]:
    """Lines without the blanks at their ends."""
    shown = io.StringIO()
    show(Console(file=shown, width=width, highlight=False, markup=False), report, quiet=quiet)
    return [line.rstrip() for line in shown.getvalue().splitlines()]


def table(*columns: Column, rows, **more) -> list[str]:
    return [
        line
        for line in printed(Report(tables=[Table(name="t", title="T", columns=columns, rows=rows, **more)]))
        if line
    ]


def test_tables_come_before_what_is_said_and_figures_are_said_in_their_own_words():
    report = Report(
        lead=[Sentence("measured so", "strong")],
        figures=[Figure("gain", "2×", "how", said="twice as fast"), Figure("of pages", "1", "how")],
        said=[
            Sentence("no best", advice="--seeds 4"),
            Words("Why?", ["because"]),
            Command("Run it so", "paceline run"),
        ],
        tables=[Table(name="t", title="T", columns=[Column("n", "number", kind="count")], rows=[{"n": 1}])],
        after=[Text("By hand", "x = 1")],
    )
    told = [line for line in printed(report) if line]
    assert told == [
        "measured so", "number", "     1", "because", "twice as fast", "no best", "→ --seeds 4",
        "Run it so: paceline run", "By hand", "x = 1",
    ]  # fmt: skip


def test_quiet_leaves_only_problems():
    report = Report(lead=[Sentence("lead")], said=[Sentence("fine"), Sentence("busy", "warn"), Sentence("lost", "bad")])
    assert printed(report, quiet=True) == ["busy", "lost"]


def test_columns_of_pages_of_downloads_and_without_values_are_left_out():
    columns = [Column("a", "a"), Column("b", "b", on="page"), Column("c", "c", spare=True), Column("d", "d"),
               Column("e", "e", on="terminal")]  # fmt: skip
    assert table(*columns, rows=[{"a": "x", "b": "x", "c": "x", "d": None, "e": "y"}]) == ["a  e", "x  y"]
    assert table(*columns, rows=[{"a": "x"}], on="page") == []


def test_an_interval_is_one_column():
    ends = (Column("low", "low", kind="times"), Column("high", "high", kind="times"))
    speed = Column("speed", "speed", kind="times", ends=ends)
    rows = [{"speed": 1.5, "low": 1.0, "high": 2.0}, {"speed": None}]
    assert table(speed, rows=rows) == ["speed   low–high", "1.50×  1.00–2.00", "    –          –"]


def test_parts_are_tables_of_their_own_with_the_first_column_and_quiet_second_lines():
    columns = [Column("n", "workers", kind="count", under="lost"), Column("a", "speed", kind="count"),
               Column("b", "work", kind="count", under="of_work", part="where it goes")]  # fmt: skip
    rows = [{"n": 1, "a": 10, "b": 5}, {"n": 2, "a": 20, "b": 6, "lost": "lost", "of_work": "0.5"}]
    assert table(*columns, rows=rows) == [
        "workers  speed", "      1     10", "      2     20",
        "where it goes", "workers  work", "      1     5", "      2     6", "   lost   0.5",
    ]  # fmt: skip


def test_rows_stand_under_their_titles():
    rows = [{"t": "pairs", "n": 1}, {"t": "pairs", "n": 2}, {"t": "copies", "n": 3}]
    told = table(Column("n", "number", kind="count"), rows=rows, by="t")
    assert told == ["pairs", "number", "     1", "     2", "copies", "number", "     3"]


def test_a_wide_column_needs_a_wide_terminal():
    columns = (Column("a", "a"), Column("b", "b", wide=True))
    report = Report(tables=[Table(name="t", title="T", columns=columns, rows=[{"a": "x", "b": "y"}])])
    assert printed(report, width=80) == ["", "a", "x", ""]
    assert printed(report, width=100) == ["", "a  b", "x  y", ""]


@pytest.mark.parametrize(("cut", "shown"), [("end", "aaa"), ("start", "zzz")])
def test_a_long_name_is_cut_and_no_sign_of_it_acts_on_the_terminal(cut, shown):
    name = "aaa" + "\x1b[31m" * 20 + "zzz"
    [_, told] = table(Column("name", "op", cut=cut), rows=[{"name": name}])
    assert len(told) == 80 - 48
    assert (told.startswith(shown), told.endswith(shown)) == (cut == "end", cut == "start")
    assert "…" in told
    assert "\x1b" not in told


def test_words_replace_a_value_and_a_column_without_a_title_shows_nothing_for_none():
    columns = (Column("a", "a", kind="number", text="said"), Column("b", ""), Column("c", "c"))
    rows = [{"a": 1.0, "said": "≈ 1", "b": "best", "c": "x"}, {"a": None, "said": "none", "b": None, "c": None}]
    assert table(*columns, rows=rows) == ["   a        c", " ≈ 1  best  x", "none        –"]


def test_a_text_is_cut_and_says_where_the_whole_of_it_is():
    lines = "\n".join(f"line {n}" for n in range(MOST_LINES + 2))
    told = printed(Report(after=[Text("Patch", lines, about="See: tuned.patch")]))
    assert told[-1] == "… 2 more lines. See: tuned.patch"
    assert f"line {MOST_LINES}" not in told
