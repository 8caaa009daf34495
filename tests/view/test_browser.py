"""The pages in a real browser: they load without a complaint, sort, filter, lead to evidence, and move with a run.

One browser for all of them. Skipped where there is none and none can be installed.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from view_browser import PATIENCE, Visit
from view_records import EVIL, OTHER, SLOW, TRAIN, grow, make_live, make_run
from view_server import Served

from paceline.charts.browser import figure
from paceline.charts.chart import Area, Axis, Band, Chart, Label, Line, Points, Rule, Shade
from paceline.record import Outcome, read_run, write_run
from paceline.view.records.layout import KINDS, Drawing, pack
from paceline.view.server.browser import open_browser
from paceline.view.server.export import export

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.timeout(900)  # the first one may have to install a browser

SWEEP, TUNE = "2026-11-15T11-20-13-sweep-train", "2026-11-15T11-48-55-tune-train"
SCALE, BANDWIDTH = "2026-11-15T11-02-47-train", "2026-11-15T12-30-20-bandwidth"
OF_A_RUN = ("memory", "logs")
# Pages that a test of their own opens, or that are built as others are. test_pages.py asks for them all.
ALIKE = ("topology", "ranks", "timeline", "ops", "op-types", "kernels", "waits", "devices")
ADDRESSES = [  # and those that a test of their own opens and checks
    "/machine",
    *(f"/{page}/{TRAIN}" for page in OF_A_RUN),
    f"/run/{BANDWIDTH}",
    *(
        pytest.param(address, marks=pytest.mark.slow)
        for address in (
            *(f"/{page}/{TRAIN}" for page in ALIKE),
            f"/ops/{TRAIN}?by=shapes",
            *(f"/run/{series}" for series in (SWEEP, TUNE)),
            f"/run/{SCALE}/trials/round1-workers2",
        )
    ),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_loads_without_a_complaint(visit, address):
    visit.open(address)
    visit.check()


def test_every_kind_of_series_and_mark_is_drawn(visit):
    """Those that no record of these tests has."""
    x, y = [1, 2, 4], [3.0, 1.0, 2.0]
    made = Chart(
        name="all",
        title="",
        caption="",
        x=Axis(kind="log"),
        y=Axis(kind="log"),
        series=[
            Line(name="line", x=x, y=y, colour="accent", low=[0.5] * 3, high=[4.0] * 3, dash="dotted", markers=True),
            Band(name="band", x=x, low=[0.5] * 3, high=[4.0] * 3, colour="accent"),
            Area(name="area", x=x, y=y, colour="data"),
            Points(name="points", x=x, y=y, colour="bad", text=["a", "b", "c"]),
        ],
        marks=[Label(x=2, y=1, text="at two and <b>one</b>"), Rule(axis="y", at=2, name="rule"), Shade(start=1, end=2)],
    )
    page = visit.open(f"/run/{SCALE}")
    visit.check()
    place = page.evaluate_handle(
        """async (figure) => {
            const card = document.querySelector('.chart');
            delete card.dataset.drawn;
            drawChart(card, figure);
            return card;
        }""",
        figure(made),
    ).as_element()
    page.wait_for_function("() => document.querySelector('.chart').dataset.drawn")
    kinds = (".line", ".errors", ".band", ".area", ".points", ".rule", ".shade")
    assert {name: len(place.query_selector_all(name)) for name in kinds} == {**dict.fromkeys(kinds, 1), ".points": 2}
    # An error bar of the second point: its middle is the point.
    bar = place.query_selector(".errors").get_attribute("d").split("M")[1:]
    at = [float(number) for number in re.findall(r"[\d.]+", bar[3])]
    label = place.query_selector(".label").bounding_box()
    box = place.query_selector("figure svg, .figure > svg").bounding_box()
    assert 0 < label["x"] - box["x"] - at[0] < 20, "beside its point, also on a logarithmic axis"
    assert place.query_selector(".label").inner_html() == "at two and &lt;b&gt;one&lt;/b&gt;", "text, not HTML"


def test_without_the_token_there_is_nothing(browser, served):
    page = browser.new_page()
    page.goto(served.base + "/")
    assert TRAIN not in page.content()
    assert "token" in page.content()
    page.close()


def test_the_page_that_the_browser_is_started_with_leads_to_the_records(browser, served):
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    with open_browser(served.first, browse=lambda address: None) as file:
        page.goto(file.as_uri())
        page.wait_for_url(f"{served.base}/")
        page.wait_for_selector("#grid-runs")
    context.close()


def test_a_table_is_sorted_and_filtered_in_place(visit):
    page = visit.open("/")
    visit.check()
    first = page.locator("#grid-runs tbody tr:visible td:nth-child(2) a").first
    page.get_by_role("link", name="samples/s").click()
    assert first.get_attribute("title") == OTHER
    assert page.locator("th[data-key=samples_per_s]").get_attribute("aria-sort") == "descending"
    page.get_by_role("link", name="samples/s").click()
    assert first.get_attribute("title") != OTHER
    page.get_by_role("searchbox").fill("channels")
    page.wait_for_function("() => document.querySelectorAll('#grid-runs tbody tr:not([hidden])').length === 1")
    assert first.get_attribute("title") == OTHER
    assert page.locator(".count").inner_text() == "1 row"


def test_a_long_table_is_sorted_and_filtered_over_all_of_its_rows(visit):
    page = visit.open(f"/iterations/{TRAIN}")
    visit.check()
    grid = page.locator("#grid-iterations")
    assert grid.locator("tbody tr").count() == 500
    grid.get_by_role("link", name="step", exact=True).click()
    page.wait_for_function("() => document.querySelector('#grid-iterations tbody td[data-v=\"300\"]')")
    assert grid.locator("tbody tr").first.locator("td").nth(1).inner_text() == "300"
    grid.get_by_role("searchbox").fill("yes data")
    page.wait_for_function("() => document.querySelectorAll('#grid-iterations tbody tr').length < 20")
    assert page.evaluate("document.activeElement.name") == "q"  # one can go on typing


def test_a_finding_leads_to_its_evidence(visit):
    page = visit.open(f"/run/{TRAIN}")
    visit.check()
    page.locator(".finding", has_text="float32").get_by_role("link", name=re.compile("evidence")).click()
    page.wait_for_url(f"**/ops/{TRAIN}")
    assert page.locator("#grid-ops tbody tr").count() > 5
    page.go_back()
    page.locator(".finding", has_text="keeps the others waiting").get_by_role(
        "link", name=re.compile("evidence")
    ).click()
    page.wait_for_url(f"**/ranks/{TRAIN}")
    assert f"Rank {SLOW}" in page.locator(".note").first.inner_text()


def test_a_number_says_how_it_was_measured(visit):
    page = visit.open(f"/ops/{TRAIN}")
    page.locator("#grid-ops tbody tr").first.locator("td").nth(2).hover()
    page.wait_for_function("() => !document.querySelector('.tip').hidden")
    assert "without nested ops" in page.locator(".tip").inner_text()
    page.locator(".tile").first.focus()
    assert "warm-up" in page.locator(".tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()


def test_light_and_dark(visit):
    page = visit.open(f"/run/{TRAIN}")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.keyboard.press("Tab")
    page.get_by_label("Light or dark").press("Enter")
    dark = page.evaluate(colour)
    assert dark != light
    visit.open("/")
    assert page.evaluate(colour) == dark  # it is remembered
    page.evaluate("localStorage.clear()")


def test_a_table_can_be_downloaded(visit):
    page = visit.open(f"/ops/{TRAIN}")
    with page.expect_download() as caught:
        page.locator("#grid-ops").get_by_role("link", name="CSV").click()
    text = caught.value.path().read_text()
    assert text.startswith("name,calls,host_self")
    assert "aten::cudnn_convolution" in text


def spans(count: int) -> bytes:
    """A step of eight ranks with many short events, as the server sends it."""
    chance, drawing = np.random.default_rng(1), Drawing()
    names = drawing.names_of([f"op {n}" for n in range(50)])
    for rank in range(8):
        number = np.arange(count // 8)
        start = number * 8000 + 1000 * rank
        kind = number % KINDS.index("gap")
        drawing.add(rank, "host", start, start + chance.integers(200, 15_000, len(start)), names[number % 50], kind)
    return pack(drawing.as_spans(1, 1, count * 1000, steps=[], left_out=0))


def frames(visit, count: int, times: int) -> list[tuple[float, int]]:
    """So many events are moved about: milliseconds of each frame, and rectangles drawn in it."""
    body = spans(count)
    visit.page.route("**/spans/**", lambda route: route.fulfill(body=body))
    page = visit.open(f"/timeline/{TRAIN}")
    card, window = page.locator(".timeline"), page.locator(".window")
    assert f"{count:,} events" in card.locator(".status").inner_text()
    window.focus()
    page.evaluate(
        "() => { const pen = CanvasRenderingContext2D.prototype, plain = pen.fillRect;"
        " pen.fillRect = function (...box) { window.drawn += 1; plain.apply(this, box); }; }"
    )
    found = []
    for key in ["+"] * times + ["d"] * 4 + ["-"] * times + ["0"]:
        before = card.locator(".status").inner_text()
        card.evaluate("card => { card.dataset.ms = ''; window.drawn = 0; }")
        page.keyboard.press(key)
        page.wait_for_function("() => document.querySelector('.timeline').dataset.ms")
        found.append((float(card.get_attribute("data-ms")), page.evaluate("window.drawn")))
        assert card.locator(".status").inner_text() != before or key in "-0"
    return found


def test_of_many_events_no_more_is_drawn_than_there_are_pixels(visit):
    drawn = [count for _, count in frames(visit, 40_000, 3)]
    assert min(drawn) > 100
    assert max(drawn) < 16 * 1280 + 100, "rows of events, times the width of the page; and the grid"


@pytest.mark.slow
def test_a_hundred_thousand_events_move_fluently(visit):
    times = sorted(time for time, _ in frames(visit, 100_000, 6))
    # The better half: on a busy machine others take their turns in the middle of a frame.
    assert times[len(times) // 4] < 16, f"milliseconds a frame: {times}"


def test_the_time_line_is_searched_moved_and_asked(visit):
    page = visit.open(f"/timeline/{TRAIN}")
    card = page.locator(".timeline")
    whole = card.locator(".status").inner_text()
    card.get_by_role("searchbox").fill("AllReduce")
    assert card.locator(".found").inner_text().startswith("12 found")
    card.get_by_role("searchbox").press("Enter")
    page.wait_for_function("() => document.querySelector('.timeline .detail').textContent.includes('AllReduce')")
    page.wait_for_function("said => document.querySelector('.timeline .status').textContent !== said", arg=whole)
    card.get_by_role("button", name="All").click()
    page.wait_for_function("said => document.querySelector('.timeline .status').textContent === said", arg=whole)
    page.evaluate("document.querySelector('.window').scrollTop = 0")
    box = card.locator(".window canvas").bounding_box()
    page.mouse.click(box["x"] + 300, box["y"] + 24 + 16 + 8)
    assert "ProfilerStep" in card.locator(".detail").inner_text()
    page.mouse.move(box["x"] + 500, box["y"] + 100)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("said => document.querySelector('.timeline .status').textContent !== said", arg=whole)


def test_the_live_page_moves_and_ends(browser, tmp_path):
    folder = make_live(tmp_path / "now", steps=10)
    served = Served(tmp_path)
    try:
        page = browser.new_page()
        visit = Visit(page, served.base)
        page.goto(served.first)
        page.get_by_title("now", exact=True).click()
        page.wait_for_url("**/live/now")
        page.wait_for_function("() => document.querySelector('section.live').dataset.steps === '10'")
        assert page.locator(".ranks tbody tr").count() == 2
        grow(folder, 11, 7)
        (folder / "log.rank0.txt").write_text(f"epoch 2 {EVIL}\n")
        page.wait_for_function("() => document.querySelector('section.live').dataset.steps === '17'")
        assert page.locator("[data-is=step]").inner_text() == "17"
        grow(folder, 18, 1)
        page.wait_for_function("() => document.querySelector('[data-is=log]').textContent.includes('epoch 2')")
        run = read_run(folder)
        run.outcome = Outcome(exit_code=0, seconds=3.0)
        write_run(folder, run)
        page.wait_for_function("() => document.querySelector('section.live').dataset.ended === '1'")
        assert page.evaluate("window.hacked") is None
        assert visit.complaints == []
        page.close()
    finally:
        served.close()


def test_nothing_but_our_own_files_can_run(visit):
    page = visit.open("/")
    page.evaluate(
        "evil => { document.body.insertAdjacentHTML('beforeend', evil);"
        " const s = document.createElement('script'); s.textContent = 'window.hacked = 2'; document.body.append(s); }",
        EVIL,
    )
    page.wait_for_function("() => document.querySelector('img[src=x]').complete")
    assert page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in each for each in visit.complaints)
    visit.complaints.clear()


def test_a_report_needs_nothing_but_itself(browser, tmp_path):
    make_run(tmp_path / "records" / "a", steps=40, ranks=2, traced=True, script=f"{EVIL}.py")
    target = tmp_path / "report.html"
    export(tmp_path / "records", "", target)
    page = browser.new_page()
    visit = Visit(page, "")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    visit.open(target.as_uri())
    page.wait_for_function("() => !document.querySelector('.chart:not([data-drawn])')")
    assert visit.complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("window.hacked") is None
    assert page.locator("section.part").count() > 8
    first = page.locator("#grid-ops tbody tr").first
    before = first.inner_text()
    page.locator("#grid-ops").get_by_role("button", name="calls").click()
    assert page.locator("#grid-ops th[data-key=calls]").get_attribute("aria-sort") == "descending"
    page.locator("#grid-ops").get_by_role("button", name="calls").click()
    assert first.inner_text() != before
    page.close()
