"""A long time line is drawn from an overview of its events, at once; all events follow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from view_records import TRAIN, make_run

from paceline.tables.trace import kept
from paceline.view.pages import timeline
from paceline.view.records import record as one_record
from paceline.view.records import spans
from paceline.view.records.layout import Drawing, StepMark, StepSpans, overview, pack, unpack
from paceline.view.records.library import Library
from paceline.view.records.path import path_of
from paceline.view.records.spans import keep_time_line, spans_of, steps_of

TOOLS = "document.querySelector('.timeline').tools"


def drawing(count: int) -> StepSpans:
    """On two ranks one long event, and many short ones below it."""
    made = Drawing()
    names = made.names_of(["step", "op"])
    for rank in range(2):
        start = np.arange(count) * 1000
        starts, ends = np.concatenate(([0], start)), np.concatenate(([count * 1000], start + 400))
        name = np.concatenate((names[:1], np.full(count, names[1])))
        made.add(rank, "host", starts, ends, name, np.zeros(count + 1, dtype=np.int64), np.arange(count + 1))
    return made.as_spans(1, 1, count * 1000, steps=[StepMark(step=1, start=0, end=count * 1000)], left_out=0)


def test_an_overview_has_what_a_screen_can_show():
    whole = drawing(10_000)
    seen = overview(whole, 100)
    assert [track.rows for track in seen.tracks] == [[1, 100], [1, 100]]
    assert (seen.events, whole.events) == (20_002, 20_002)
    for name in ("start", "length", "name", "kind"):
        assert (getattr(seen, name) == getattr(whole, name)[seen.place]).all()
    told = unpack(pack(seen))
    assert told["place"] == seen.place.tolist()
    assert told["events"] == 20_002
    assert len(pack(seen)) < len(pack(whole)) / 50


def test_an_overview_of_few_events_has_them_all():
    whole = drawing(20)
    assert (overview(whole).place == np.arange(42)).all()
    nothing = Drawing().as_spans(1, 1, 0, steps=[], left_out=0)
    assert overview(nothing).events == 0


def test_the_page_draws_the_overview_and_then_everything(visit, monkeypatch):
    monkeypatch.setattr(timeline, "MANY", 10)
    held: list[object] = []
    visit.page.route("**/spans/**", lambda route: held.append(route))
    page = visit.open(f"/timeline/{TRAIN}?step=2")
    card = page.locator(".timeline")
    assert card.locator(".status").inner_text().endswith("events, loading")
    # What needs all events waits for them.
    card.get_by_role("searchbox").fill("AllReduce")
    assert card.locator(".found").inner_text() == "loading all events …"
    page.evaluate(f"{TOOLS}.choose(3)")
    name = card.locator(".detail").inner_text()
    (route,) = held
    route.continue_()
    page.wait_for_function("() => document.querySelector('.timeline').dataset.whole")
    assert card.locator(".found").inner_text().startswith("12 found")
    assert card.locator(".detail").inner_text() == name, "the same event is chosen"
    page.wait_for_function("() => !document.querySelector('.timeline .status').textContent.includes('loading')")
    assert page.evaluate(f"{TOOLS}.spans.link_from.length") > 0
    assert visit.complaints == []
    visit.page.unroute("**/spans/**")


def test_a_few_events_are_loaded_at_once(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=2")
    assert page.locator(".timeline").get_attribute("data-overview") is None


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A folder with a record whose traces count as large."""
    monkeypatch.setattr(kept, "WORTH_IT", 1)
    make_run(tmp_path / TRAIN, ranks=2, steps=5, traced=True)
    return tmp_path


def test_a_record_is_parsed_once_however_often_view_starts(large, monkeypatch):
    first = spans_of(Library(large).open(TRAIN), 2)
    monkeypatch.setattr(one_record, "read_traces", None)  # calling it would fail
    again = spans_of(Library(large).open(TRAIN), 2)
    assert pack(again) == pack(first)


def test_a_long_time_line_is_laid_out_once(large, monkeypatch):
    """The next server needs no traces for it: only the critical path does."""
    monkeypatch.setattr(spans, "WORTH_IT", 1)
    first = spans_of(Library(large).open(TRAIN), 1, 3)
    record = Library(large).open(TRAIN)
    assert steps_of(record) == [1, 2, 3]
    again = spans_of(record, 1, 3)
    assert record.read_traces is None
    assert pack(again) == pack(first)
    assert again.gaps.equals(first.gaps)
    assert (again.event == first.event).all()
    assert path_of(record, 1, 3).pieces
    assert len(spans_of(record, 2).start) < len(first.start), "other steps are drawn from the traces"


def changed(path: Path, **changes: object) -> None:
    data = path.read_bytes()
    until = 8 + int.from_bytes(data[:8], "little")
    told = json.loads(data[8:until])
    told["head"] |= changes.pop("head", {})
    for name, column in changes.items():
        told["columns"][name] |= column
    head = json.dumps(told).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[until:])


@pytest.mark.parametrize(
    "changes",
    [
        {"head": {"names": []}},
        {"head": {"tracks": []}},
        {"head": {"tracks": [{"rank": 0, "label": "host", "rows": [-5]}]}},
        {"head": {"end": -1}},
        {"start": {"zero": 2**62}},
        {"length": {"zero": -9999}},
        {"kind": {"zero": 99}},
        {"link_to": {"zero": 10**6}},
        {"event": {"count": 1}},
        {"gap.cause": {"zero": 99}},
        {"gap.end": {"count": 1}},
    ],
)
def test_a_damaged_drawing_is_drawn_again(large, monkeypatch, client_of, changes):
    monkeypatch.setattr(spans, "WORTH_IT", 1)
    first = spans_of(Library(large).open(TRAIN), 1, 3)
    changed(large / TRAIN / "timeline.columns", **changes)
    record = Library(large).open(TRAIN)
    assert pack(spans_of(record, 1, 3)) == pack(first)
    assert record.read_traces is not None
    assert client_of(large).get(f"/timeline/{TRAIN}?step=1&until=3").status_code == 200


def test_profile_leaves_a_time_line_that_need_not_be_laid_out(large, monkeypatch):
    monkeypatch.setattr(spans, "WORTH_IT", 1)
    keep_time_line(large / TRAIN)
    record = Library(large).open(TRAIN)
    assert spans_of(record, 1, 3).until == 3
    assert record.read_traces is None


def test_the_copies_do_not_make_a_record_look_changed(large):
    library = Library(large)
    record = library.open(TRAIN)
    spans_of(record, 2)
    assert len(list((large / TRAIN).glob("*.columns"))) == 2
    assert library.open(TRAIN) is record
