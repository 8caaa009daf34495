"""A walk over one record of each verb, in a real browser: every page is there, and none shows what a program shows.

One browser for all of them. Skipped where there is none and none can be installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from verb_records import TRACEBACK, make_each_verb
from view_browser import Visit, visiting

from paceline.view.records.contents import SERIES
from paceline.view.records.library import Library
from paceline.view.server.site import pages_of

pytestmark = pytest.mark.timeout(900)  # the first one may have to install a browser

# Words of a program: values that were not said in words, and code that was not run.
RAW = re.compile(r"\bNone\b|\bnan\b|\bNaN\b|\binf\b|\bInfinity\b|\bundefined\b|\[object |\{'|\{\"|\[\]|\{\{|Undefined")
# Words of a drawing that leave it, and those that lie on one another.
WORDS = """() => [...document.querySelectorAll('.chart svg, .split svg.bar')].flatMap((svg) => {
  const box = svg.getBoundingClientRect(), found = [];
  const shown = [...svg.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const words = shown.filter(([, at]) => at.width);
  for (const [text, at] of words) if (at.left < box.left - 1 || at.right > box.right + 1) found.push('cut: ' + text);
  words.forEach(([text, a], n) => words.slice(n + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && tall > 4) found.push(text + ' on ' + other);
  }));
  return found;
})"""
VERBS = ("run", "profile", *SERIES)
SPECIAL = ("cpu", "pair", "failed", "pipelines", "noise", "servers", "killed", "timed")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verbs") / "paceline-runs"
    assert set(make_each_verb(folder)) == {*VERBS, *SPECIAL}
    return folder


@pytest.fixture(scope="module")
def visit(browser, root) -> Iterator[Visit]:
    with visiting(browser, root) as it:
        yield it


@pytest.mark.parametrize("name", [*VERBS, *SPECIAL])
def test_every_page_of_every_verbs_record_can_be_read(visit, root, name):
    shown = pages(root, name)
    assert shown[0] == "run"
    if name in ("run", *SPECIAL):  # its other pages are those of the profile
        shown = ["run", *(key for key in shown if key not in pages(root, "profile"))]
    read(visit, name, shown)


@pytest.mark.slow
def test_every_page_of_a_run_without_a_profile_can_be_read(visit, root):
    read(visit, "run", pages(root, "run"))


def pages(root: Path, name: str) -> list[str]:
    return [kind.key for kind in pages_of(Library(root).open(name))]


def read(visit: Visit, name: str, keys: list[str]) -> None:
    for key in keys:
        visit.complaints.clear()
        page = visit.open(f"/{key}/{name}")
        assert visit.complaints == [], f"{key}: the browser complains"
        assert page.locator("h1").count() == 1
        assert page.evaluate(WORDS) == [], f"{key} of {name}"
        # Data of charts and pages' scripts are for the browser, not for people.
        page.evaluate("document.querySelectorAll('main script').forEach((each) => each.remove())")
        text = page.evaluate("document.querySelector('main').textContent")
        hints = page.evaluate("[...document.querySelectorAll('[data-how]')].map((each) => each.dataset.how).join(' ')")
        assert not RAW.search(text), f"{key}: {text[max(0, RAW.search(text).start() - 60) :][:140]}"
        assert not RAW.search(hints), key
        for width in (1440, 400):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{key} is wider than {width}"
        page.set_viewport_size({"width": 1440, "height": 900})


def test_the_words_of_charts_neither_overlap_nor_are_cut_on_a_phone(browser, visit, root):
    context = browser.new_context(viewport={"width": 400, "height": 900})
    context.add_cookies(visit.page.context.cookies())
    narrow = Visit(context.new_page(), visit.base)
    library = Library(root)
    pages = [(key, name) for name in (*VERBS, "pair", "noise") for key in ("run", "ranks", "kernels")]
    for key, name in pages:
        if key in {kind.key for kind in pages_of(library.open(name))}:
            page = narrow.open(f"/{key}/{name}")
            assert page.evaluate(WORDS) == [], f"{key} of {name}"
    context.close()


def test_converge_shows_curves_with_their_spread_sharpness_and_the_critical_batch(visit):
    page = visit.open("/run/converge")
    assert "lamb" in page.locator(".tile", has_text="best technique").inner_text()
    for chart in ("accuracy", "losses", "loss-lines"):
        assert page.locator(f"#chart-{chart}").count() == 1
    bands = "() => figureOf(document.getElementById('chart-%s')).data.filter((each) => each.fill === 'toself').length"
    assert page.evaluate(bands % "accuracy") == page.evaluate(bands % "losses") == 3
    table = page.locator("#grid-techniques").inner_text()
    assert "sharpness" in table
    assert "55.0 % to 56.0 %" in table
    assert "did not converge for naive" in table
    assert page.get_by_text("about 407 samples").count() == 1
    command = page.locator(".verdict code").inner_text()
    assert command == "paceline run -n 8 --batch scale --mod optimizer=lamb train.py"


def test_the_stages_of_a_pipeline_are_shown_with_fill_bottleneck_and_lost_samples(visit):
    page = visit.open("/run/pipelines")
    page.get_by_role("link", name="Input", exact=True).click()
    page.wait_for_url("**/pipelines/pipelines")
    tiles = page.locator(".tiles").inner_text()
    assert "41.0 %" in tiles
    assert "map decode" in tiles
    assert "48" in page.locator(".tile", has_text="lost samples").inner_text()
    marked = page.locator("#grid-stages tr.marked")
    assert marked.count() == 2, "the bottleneck, on each rank"
    assert "25.0 %" in marked.first.inner_text(), "2 of 8 are ready"


def test_bandwidth_between_two_workers_has_numbers_with_units_and_no_heat_map(visit):
    page = visit.open("/run/pair")
    assert page.locator(".lead code").inner_text() == "paceline bandwidth -n 2"
    assert "8.00 GB/s" in page.locator(".tiles").inner_text()
    assert page.locator("[id^=chart-curve]").count() == 1
    assert page.locator("[id^=chart-bandwidth], [id^=chart-latency]").count() == 0
    page = visit.open("/run/bandwidth")
    assert page.locator("[id^=chart-bandwidth], [id^=chart-latency]").count() == 3


def test_a_run_with_noise_scale_shows_the_critical_batch_and_what_the_script_logged(visit):
    page = visit.open("/run/noise")
    assert "512" in page.locator(".tile", has_text="critical batch").inner_text()
    assert page.locator("#chart-noise-scale").count() == 1
    assert page.locator("#chart-logged-accuracy").count() == 1


def test_the_results_of_a_series_and_its_trials_are_one_page_in_words(visit):
    page = visit.open("/run/converge")
    assert [each.inner_text() for each in page.locator("nav.side a").all()] == ["Results"]
    trials = page.locator("#grid-trials")
    assert trials.locator("tbody tr").count() == 6
    assert "optimizer=lamb, seed 1" in trials.inner_text()
    assert "one worker, seed 0" in trials.inner_text()
    trials.get_by_role("link", name="one worker, seed 0").click()
    page.wait_for_url("**/run/converge/trials/oneworker.seed0")
    visit.open("/results/converge")
    assert page.url.endswith("/run/converge"), "earlier addresses lead here"


def test_a_series_without_a_verdict_shows_its_trials(visit):
    page = visit.open("/run/killed")
    assert "wrote no verdict" in page.locator("main").inner_text()
    assert "batch ×2, round 1" in page.locator("#grid-trials").inner_text()
    assert page.locator(".badge").inner_text() == "stopped"


def test_a_traceback_keeps_its_indentation_in_a_fixed_font(visit):
    page = visit.open("/run/failed")
    code = page.locator(".note.bad pre")
    assert code.inner_text() == TRACEBACK
    assert "monospace" in code.evaluate("each => getComputedStyle(each).fontFamily")
    assert code.evaluate("each => getComputedStyle(each).whiteSpace") == "pre"
