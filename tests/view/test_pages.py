"""What the pages say, without a browser."""

from __future__ import annotations

import csv
import io

import pytest
from view_records import EVIL, OTHER, SLOW, TRAIN, make_run

from paceline.record import Outcome
from paceline.trials.summary import summarize
from paceline.view.library import Library
from paceline.view.measures import measure


def test_the_list_has_every_record_and_its_figures(client):
    page = client.get("/").text
    for name in (TRAIN, OTHER, "2026-11-15T12-30-20-bandwidth"):
        assert name in page
    told = client.get("/json/runs/runs/all").json()
    rows = {row["name"]: row for row in told["rows"]}
    assert rows[TRAIN]["workers"] == 4
    assert rows[TRAIN]["steps"] == 300
    assert rows[TRAIN]["state"] == "ended"
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
