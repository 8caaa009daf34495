"""What the pages say, without a browser."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_records import EVIL, OTHER, SLOW, TRAIN, make_run

from paceline.record import Outcome
from paceline.record.servers import ServerReport, write_report
from paceline.trials.core.summary import summarize
from paceline.view.pages import servers
from paceline.view.records.library import Library
from paceline.view.records.record import measure
from paceline.view.server.render import data_block
from paceline.view.server.site import pages_of
from paceline.view.ui.grid import Column, Grid


def test_the_list_has_every_record_and_its_figures(client):
    page = client.get("/").text
    for name in (TRAIN, OTHER, "2026-11-15T12-30-20-bandwidth"):
        assert name in page
    told = client.get("/json/runs/runs/all").json()
    rows = {row["name"]: row for row in told["rows"]}
    assert rows[TRAIN]["workers"] == 4
    assert rows[TRAIN]["steps"] == 300
    assert rows[TRAIN]["state"] == "succeeded"
    assert rows[OTHER]["mods"] == "precision, channels_last"
    assert all(column["how"] for column in told["columns"])


def test_the_list_can_be_searched_and_sorted(client):
    rows = client.get("/json/runs/runs/all?q=channels_last").json()["rows"]
    assert [row["name"] for row in rows] == [OTHER]
    rows = client.get("/json/runs/runs/all?sort=samples_per_s&order=desc").json()["rows"]
    speeds = [row["samples_per_s"] for row in rows if row["samples_per_s"] is not None]
    assert speeds == sorted(speeds, reverse=True)
    assert rows[0]["name"] == OTHER
    assert rows[-1]["samples_per_s"] is None  # what has no speed comes last


def test_the_dashboard_has_the_figures_that_run_prints(records):
    record = Library(records).open(TRAIN)
    ours, theirs = measure(record), summarize(records / TRAIN)
    assert ours.samples_per_s == pytest.approx(theirs.samples_per_s)
    assert ours.warm_up == theirs.warm_up
    assert ours.step == pytest.approx(theirs.step)
    assert ours.last_loss == theirs.last_loss


def test_the_dashboard_names_the_slow_rank_and_the_findings(client):
    page = client.get(f"/run/{TRAIN}").text
    assert f"rank {SLOW}" in page
    assert "since step 120" in page
    assert "Matrix products run in float32" in page
    assert "--mod precision=bf16" in page


def test_html_in_a_record_is_text(client):
    page = client.get(f"/run/{TRAIN}").text
    assert EVIL not in page
    assert "&lt;script&gt;window.hacked=1" in page


def test_json_in_a_page_cannot_end_its_element():
    told = {"name": "</script><!-- & <b>\u2028"}
    text = str(data_block(told))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == told


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@a", "\tx"])
def test_no_cell_is_a_formula(name):
    grid = Grid(name="g", title="", columns=[Column(key="a", title="", how="")], rows=[{"a": name}, {"a": -1}])
    assert grid.as_csv().splitlines()[1].strip('"').startswith("'")
    assert grid.as_csv().splitlines()[-1] == "-1"  # a number is one


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9)


@given(st.lists(st.fixed_dictionaries({"n": numbers, "t": st.text(max_size=5)}), max_size=30), st.booleans())
def test_sorting_and_filtering_lose_and_invent_nothing(rows, descending):
    columns = [Column(key="n", title="", how="", kind="number"), Column(key="t", title="", how="")]
    grid = Grid(name="g", title="", columns=columns, rows=rows)
    order = {"sort": "n", "order": "desc" if descending else "asc"}
    known = [row["n"] for row in grid.arranged(order).rows]
    assert sorted(map(repr, known)) == sorted(repr(row["n"]) for row in rows)
    there = [value for value in known if value is not None]
    assert there == sorted(there, reverse=descending)
    assert known == there + [None] * (len(known) - len(there))
    for row in rows:
        word = row["t"].lower().split()[:1]
        if word:
            assert row in grid.arranged({"q": word[0]}).rows


def test_a_failed_run_says_why(tmp_path, client_of):
    outcome = Outcome(exit_code=1, seconds=3.0, failed_rank=1, cause="ValueError", message="worker 1: ValueError: no")
    make_run(tmp_path / "a", steps=3, ranks=2, outcome=outcome)
    page = client_of(tmp_path).get("/run/a").text
    assert "worker 1: ValueError: no" in page
    assert "state-failed" in page


def test_a_run_without_steps_has_a_dashboard(tmp_path, client_of):
    make_run(tmp_path / "a", steps=0, ranks=1)
    assert client_of(tmp_path).get("/run/a").status_code == 200


def test_an_empty_folder_says_what_to_type(tmp_path, client_of):
    assert "paceline run -n 2 train.py" in client_of(tmp_path).get("/").text


def test_a_download_is_no_spreadsheet_formula(tmp_path, client_of):
    make_run(tmp_path / "a", steps=2, ranks=1, script="=cmd|'/c calc'!A1.py")
    rows = list(csv.reader(io.StringIO(client_of(tmp_path).get("/csv/runs/runs/all").text)))
    assert rows[0][0] == "name"
    assert rows[1][rows[0].index("script")].startswith("'=cmd")


def test_the_staleness_of_a_parameter_servers_updates(tmp_path):
    make_run(tmp_path / "plain", steps=3, ranks=1)
    make_run(tmp_path / "served", steps=3, ranks=2)
    for number in range(2):
        write_report(
            tmp_path / "served",
            ServerReport(server=number, updates=70, bytes=4096, staleness={0: 10, 3: 50, 999: 10}, lost=1, starts=2),
        )
    plain, served = (Library(tmp_path).open(name) for name in ("plain", "served"))
    assert "servers" not in [page.key for page in pages_of(plain)]
    assert "servers" in [page.key for page in pages_of(served)]
    note, _, chart, grid = servers.build(served, {}).blocks
    assert note.text == "Server 0 was started 2 times; the last time, 1 update was lost."
    bars = chart.series[0]
    assert {at: number for at, number in zip(bars.x, bars.y, strict=True) if number} == {"0": 10, "3": 50, "200+": 10}
    assert grid.rows[1]["mean"] == pytest.approx((150 + 9990) / 70)
