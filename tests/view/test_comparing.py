"""The list of runs and the comparison of several, in a real browser. Skipped where there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from verb_records import make_each_verb
from view_browser import Visit, visiting
from view_records import make_run, make_sweep

from paceline.record import read_run, write_run
from paceline.record.inside import Folder
from paceline.view.records.headline import headline

pytestmark = pytest.mark.timeout(900)  # the first one may have to install a browser


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "paceline-runs"
    make_each_verb(folder)
    make_run(folder / "fast", seed=2, ranks=2, steps=60, speed=1.6, mods=["channels_last"])
    run = read_run(folder / "fast")
    run.settings["gather_below"] = 4096
    write_run(folder / "fast", run)
    (folder / "fast" / "labels.json").write_text(json.dumps({"name": "bigger net", "tags": ["paper"], "note": "ok"}))
    return folder


@pytest.fixture(scope="module")
def visit(browser, root) -> Iterator[Visit]:
    with visiting(browser, root) as it:
        yield it


FITS = "() => { const box = document.querySelector('#grid-runs .scroll'); return box.scrollWidth <= box.clientWidth; }"


def test_the_columns_that_matter_fit_on_a_screen_and_on_a_phone(visit):
    page = visit.open("/")
    assert page.evaluate(FITS), "no column is cut off at 1440 pixels"
    texts = page.locator("#grid-runs").inner_text()
    for word in (
        "2.1× faster",
        "knee at batch 256",
        "accuracy 73.5 % with lamb",
        "5.68× on 8 workers",
        "AttributeError",
    ):
        assert word in texts
    for state in ("succeeded", "failed", "stopped"):
        assert page.locator(f"#grid-runs td.state-{state}").count() >= 1
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate(FITS), "no column is cut off at 400 pixels"
    cells = page.locator("#grid-runs tbody tr", has_text="2.1× faster").locator("td[data-title]:visible").all()
    assert [cell.get_attribute("data-title") for cell in cells] == ["run", "began", "verb", "state", "result"]
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("searchbox").fill("#paper")
    page.wait_for_function("() => document.querySelectorAll('#grid-runs tbody tr:not([hidden])').length === 1")
    assert "bigger net" in page.locator("#grid-runs tbody tr:visible").inner_text()
    page.get_by_role("searchbox").fill("knee")
    page.wait_for_function("() => document.querySelectorAll('#grid-runs tbody tr:not([hidden])').length === 1")
    assert visit.complaints == []


def test_any_number_of_runs_is_compared_with_curves_settings_and_words(visit):
    page = visit.open("/")
    button = page.locator("button.compare")
    assert button.is_disabled()
    for name in ("fast", "run", "noise"):
        page.get_by_label(f"Compare {name}", exact=True).check()
    assert button.inner_text() == "Compare 3 runs"
    button.click()
    page.wait_for_url("**/compare?**")
    visit.open(page.url.removeprefix(visit.base))
    order = [each.inner_text() for each in page.locator("#grid-compared tbody td:nth-child(2)").all()]
    a, fast = order[0], "ABC"[order.index("fast")]
    traces = "name => figureOf(document.getElementById('chart-' + name)).data.map((each) => each.name)"
    assert page.evaluate(traces, "loss") == page.evaluate(traces, "speed") == ["A", "B", "C"]
    assert page.evaluate(traces, "logged-accuracy") == ["ABC"[order.index("noise")]]
    answers = page.locator(".words")
    assert answers.count() == 2
    if a != "fast":
        told = answers.filter(has_text=f"Why is {fast} faster than A?").inner_text()
        assert f"{fast} is 1." in told
        assert "mods (none → channels_last)" in told
    settings = page.locator("#grid-settings").inner_text()
    assert "gather below" in settings
    assert "channels_last" in settings
    visit.check()


def test_a_slower_run_is_explained_phase_by_phase(visit):
    page = visit.open("/compare?run=fast&run=run")
    told = page.locator(".words").inner_text()
    assert "Why is B slower than A?" in told
    assert "more per step than A" in told
    assert "in backward" in told
    assert "mods (channels_last → none)" in told
    assert visit.complaints == []


def test_curves_are_smoothed_and_drawn_on_logarithmic_axes(visit):
    page = visit.open("/compare?run=run&run=fast")
    drawn = "() => document.querySelector('#chart-loss .figure')?.view?.figure"
    before = page.evaluate(f"({drawn})().data[0].y.slice()")
    assert page.evaluate(f"({drawn})().layout.yaxis.type ?? 'linear'") == "linear"
    page.locator("[name=logy]").check()
    page.locator("[name=smooth]").fill("0.9")
    page.wait_for_function(f"() => ({drawn})().data.length === 4 && ({drawn})().layout.yaxis.type === 'log'")
    raw, smooth = page.evaluate(f"[({drawn})().data[0].y.slice(), ({drawn})().data[2].y.slice()]")
    assert raw == before, "the measured values stay visible"

    def roughness(values: list[float]) -> float:
        return sum(abs(b - a) for a, b in pairwise(values))

    assert roughness(smooth) < roughness(raw)
    assert "smooth=0.9" in page.url, "a link repeats the choice"
    page.get_by_role("link", name="samples seen").click()
    page.wait_for_url("**over=samples**")
    page.wait_for_function(f"() => ({drawn})()?.data?.length === 4")
    assert page.evaluate(f"({drawn})().data[0].x[1]") == 2 * 256, "samples of two steps"
    assert visit.complaints == []


def test_a_short_logarithmic_axis_has_ticks(visit):
    page = visit.open("/compare?run=noise&run=run#smooth=0&logx=0&logy=1")
    labels = page.locator("#chart-logged-accuracy .figure text").all_text_contents()
    assert len([label for label in labels if label.startswith("0.")]) >= 2, "from 0.6 to 0.9"


def test_series_are_compared_by_their_results_and_settings(visit):
    page = visit.open("/compare?run=tune&run=sweep")
    assert "2.1× faster" in page.locator("#grid-compared").inner_text()
    visit.check()


def test_the_curves_of_series_of_one_verb_are_overlaid(visit, root):
    for name, factor in (("sweep2", 2), ("sweep3", 3)):
        make_sweep(root / name)
        verdict = json.loads((root / name / "verdict.json").read_text())
        for point in verdict["points"]:
            point["samples_per_s"] = point.get("samples_per_s", 0) * factor
        (root / name / "verdict.json").write_text(json.dumps(verdict))
    page = visit.open("/compare?run=sweep&run=sweep2&run=sweep3&run=tune")
    told = page.evaluate(
        "figureOf(document.getElementById('chart-of-sweep')).data.map((each) => [each.name, each.y[0]])"
    )
    assert told == [["A", 610], ["B", 1220], ["C", 1830]]
    visit.check()


def test_one_run_alone_cannot_be_compared(visit):
    page = visit.page
    page.goto(visit.base + "/compare?run=run&run=run")
    assert "two to 50 different runs; found 1" in page.locator(".note.bad").inner_text()
    visit.complaints.clear()  # the browser reports the answer's status


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tune", "2.1× faster"),
        ("sweep", "knee at batch 256"),
        ("scale", "5.68× on 8 workers, 71 % efficiency"),
        ("converge", "accuracy 73.5 % with lamb"),
        ("profile", "3 findings, up to 1.62×"),
        ("noise", "accuracy 90.0 %"),
        ("failed", "AttributeError: 'Tensor' object has no attribute 'missing'"),
        ("run", ""),
        ("killed", ""),
    ],
)
def test_a_record_has_its_main_result_in_words(root, name, words):
    assert headline(read_run(root / name), Folder(root / name)) == words


@pytest.mark.parametrize(
    "verdict", ["[]", "{}", '{"final": 3, "points": [1], "rows": {}, "knee": "x"}', "{", "[" * 9999]
)
@pytest.mark.parametrize("verb", ["tune", "sweep", "scale", "converge", "bandwidth"])
def test_a_strange_verdict_has_no_result(tmp_path, verb, verdict):
    (tmp_path / "verdict.json").write_text(verdict)
    (tmp_path / "run.json").write_text(
        json.dumps({"paceline": "0", "verb": verb, "script": "a.py", "arguments": [], "settings": {}})
    )
    assert headline(read_run(tmp_path), Folder(tmp_path)) == ""
