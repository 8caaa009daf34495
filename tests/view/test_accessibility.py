"""Charts have words and a table, no colour alone carries a meaning, few tab stops, and light pages."""

from __future__ import annotations

import re

import pytest
from view_records import TOKEN, TRAIN

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.timeout(900)  # the first one may have to install a browser

LIGHT = 300_000  # bytes that the first visit of a page loads, as sent
FEW = 60  # tab stops of a page with many numbers
TABBABLE = """() => [...document.querySelectorAll('a[href], button, input, summary, [tabindex]')].filter((each) =>
    each.tabIndex >= 0 && !each.disabled && each.offsetParent !== null
    && !each.closest('details:not([open]) > :not(summary)')).map((each) => each.outerHTML.slice(0, 80))"""


def few_tab_stops(page):
    found = page.evaluate(TABBABLE)
    assert len(found) < FEW, found


@pytest.mark.parametrize("page_of", ["run", "ranks", "iterations", "devices"])
def test_every_chart_has_words_and_a_table_and_there_is_no_wall_of_tab_stops(visit, page_of):
    page = visit.open(f"/{page_of}/{TRAIN}")
    few_tab_stops(page)
    charts = page.locator(".chart")
    assert charts.count() > 0
    for number in range(charts.count()):
        chart = charts.nth(number)
        words = chart.locator(".figure").get_attribute("aria-describedby")
        told = page.locator(f"#{words}").inner_text()
        assert re.search(r"(lowest|highest|at) ", told), told
        chart.locator("summary").click()
        rows = chart.locator("details.data tbody tr")
        rows.first.wait_for()
        heads = chart.locator("details.data thead th").count()
        assert rows.first.locator("th, td").count() == heads >= 2


def test_series_differ_by_more_than_their_colour(visit):
    page = visit.stay(f"/devices/{TRAIN}")
    marks = page.evaluate(
        "() => [...document.querySelector('.chart').querySelectorAll('.series svg path:last-child')]"
        ".map((each) => each.getAttribute('stroke-dasharray'))"
    )
    assert len(set(marks)) == len(marks) >= 4, "every line has dashes of its own"
    page = visit.open(f"/iterations/{TRAIN}")
    fills = page.evaluate(
        "() => [...document.querySelectorAll('.bars')].map((bars) => {"
        '  const id = /url\\("?#(.*?)"?\\)/.exec(bars.style.fill);'
        "  return id ? document.getElementById(id[1]).querySelector('path').getAttribute('d') : ''; })"
    )
    assert len(fills) >= 5
    assert len(set(fills)) == len(fills), "every part of a step has a texture of its own"


def test_the_legend_hides_and_shows_a_series_by_keys(visit):
    page = visit.stay(f"/iterations/{TRAIN}")
    card = page.locator(".chart", has=page.locator(".bars")).first
    buttons = card.locator(".series button")
    before = card.locator(".bars").count()
    buttons.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert card.locator(".series button").nth(1).get_attribute("aria-pressed") == "false"
    assert card.locator(".bars").count() == before - 1
    page.keyboard.press("Enter")
    assert card.locator(".bars").count() == before


def test_the_table_of_a_chart_has_its_numbers(visit):
    page = visit.open(f"/run/{TRAIN}")
    card = page.locator("#chart-loss")
    card.locator("summary").click()
    drawn = page.evaluate("() => figureOf(document.querySelector('#chart-loss')).data[0]")
    rows = card.locator("details.data tbody tr")
    rows.first.wait_for()
    assert rows.count() == len(drawn["x"])
    first = rows.first.locator("th, td").all_inner_texts()
    assert first[0] == str(drawn["x"][0])
    assert float(first[1]) == pytest.approx(drawn["y"][0], rel=1e-3)


def test_parts_of_a_bar_and_tones_are_written(visit):
    page = visit.open(f"/run/{TRAIN}")
    assert "backward" in page.locator(".split .bar text").all_text_contents()
    assert re.search(r"backward \d+", page.locator(".split .bar").get_attribute("aria-label"))
    signs = page.evaluate(
        "() => [...document.querySelectorAll('.tile:is(.warn, .bad, .good) .value, .note.warn p:first-child')]"
        ".map((each) => getComputedStyle(each, '::before').content)"
    )
    assert signs
    assert all(sign not in ("none", "normal", '""') for sign in signs)
    page = visit.open(f"/timeline/{TRAIN}")
    textures = page.evaluate("() => { const line = document.querySelector('.timeline').tools.line; return TEXTURES; }")
    assert {"communication", "copy", "sync", "gap"} <= set(textures)


@pytest.mark.parametrize("page_of", ["", "timeline", "ops"])
def test_there_is_no_wall_of_tab_stops(visit, page_of):
    few_tab_stops(visit.open(f"/{page_of}/{TRAIN}" if page_of else "/"))


def test_arrow_keys_lead_through_a_group_of_numbers(visit):
    page = visit.open(f"/run/{TRAIN}")
    tiles = page.locator(".tile")
    tiles.first.focus()
    page.keyboard.press("ArrowRight")
    assert tiles.nth(1).evaluate("each => each === document.activeElement")
    assert page.locator(".tip").is_visible()
    page.keyboard.press("Tab")
    assert tiles.nth(2).evaluate("each => each !== document.activeElement"), "Tab leaves the group"


def test_a_drag_on_a_chart_zooms_and_a_button_shows_all(visit):
    page = visit.open(f"/run/{TRAIN}")
    card = page.locator("#chart-loss")
    card.scroll_into_view_if_needed()
    box = card.locator(".figure > svg").bounding_box()
    whole = card.locator(".line").get_attribute("d")
    page.mouse.move(box["x"] + 150, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 110, steps=3)
    page.mouse.up()
    assert card.locator(".line").get_attribute("d") != whole
    card.get_by_role("button", name="Show all").click()
    assert card.locator(".line").get_attribute("d") == whole
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.wait_for_function("() => !document.querySelector('.tip').hidden")
    assert re.search(r"step \d+\nloss: [\d.]+", page.locator(".tip").inner_text())


@pytest.mark.parametrize(
    "path",
    [
        *(f"/run/{TRAIN}", f"/timeline/{TRAIN}"),
        # The same styles and scripts.
        *(pytest.param(path, marks=pytest.mark.slow) for path in ("/", f"/ranks/{TRAIN}")),
    ],
)
def test_the_first_page_is_light(browser, served, path):
    context = browser.new_context()
    context.set_extra_http_headers({"Authorization": f"Bearer {TOKEN}"})
    page = context.new_page()
    sizes: dict[str, int] = {}

    def add(request) -> None:
        told = request.sizes()
        if not request.url.startswith("data:") and "/spans/" not in request.url:
            sizes[request.url] = told["responseBodySize"] + told["responseHeadersSize"]

    page.on("requestfinished", add)
    page.goto(served.base + path, wait_until="networkidle")
    assert len(sizes) > 3
    assert 10_000 < sum(sizes.values()) < LIGHT, sizes
    context.close()
