"""The time line in a real browser: several steps, arrows, measuring, the critical path, gaps, and keys."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from view_records import TRAIN

from paceline.view.records.layout import KINDS
from paceline.view.records.library import Library
from paceline.view.records.spans import spans_of
from paceline.view.server.export import export

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.timeout(900)  # the first one may have to install a browser

CHOSEN = "() => document.querySelector('.timeline').tools.line.chosen"


def test_several_steps_are_in_one_view(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=2")
    assert page.locator(".timeline h2").inner_text() == "Step 2"
    one = page.locator(".timeline .status").inner_text()
    page.get_by_role("link", name="all 3").click()
    page.wait_for_url("**/timeline/**step=1&until=3")
    visit.open(f"/timeline/{TRAIN}?step=1&until=3")
    assert page.locator(".timeline h2").inner_text() == "Steps 1 to 3"
    assert page.evaluate("() => document.querySelector('.timeline').tools.spans.steps.map((s) => s.step)") == [1, 2, 3]
    count = [
        int(re.search(r"([\d,]+) events", text)[1].replace(",", ""))
        for text in (one, page.locator(".timeline .status").inner_text())
    ]
    assert count[1] > 2.9 * count[0]
    # The steps stand side by side: marks of all three are in the first row of a rank.
    rows = page.evaluate(
        "() => { const s = document.querySelector('.timeline').tools.spans; const found = [];"
        " for (let n = 0; n < s.count; n++)"
        "   if (s.nameOf(n).startsWith('ProfilerStep')) found.push(s.rows[s.rowOf(n)].depth);"
        " return found; }"
    )
    assert rows == [0] * 12
    page.get_by_label("Last step").fill("2")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**until=2")
    visit.check()


STEP_WORDS = """(times) => {
  const { line } = document.querySelector('.timeline').tools, { pen } = line, found = [];
  pen.fillText = (words, x, y, room = Infinity) => {
    if (y === 28) found.push([words, pen.measureText(words).width <= room]);
  };
  line.view = [0, line.range[1] * times];
  line.draw();
  delete pen.fillText;
  return found;
}"""


def test_the_words_of_narrow_steps_are_shortened_and_not_squeezed(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=1&until=3")
    assert page.evaluate(STEP_WORDS, 1) == [[f"step {n}", True] for n in (1, 2, 3)]
    assert page.evaluate(STEP_WORDS, 12) == [[str(n), True] for n in (1, 2, 3)]
    assert page.evaluate(STEP_WORDS, 100) == []


def test_arrows_lead_from_a_launch_to_its_kernel_and_between_ranks(visit, records):
    told = spans_of(Library(records).open(TRAIN), 2)
    name, kind, track = [told.names[n] for n in told.name], told.kind, told.track
    launches = [(a, b) for a, b, k in zip(told.link_from, told.link_to, told.link_kind, strict=True) if k == 0]
    assert all(name[a].startswith("cuda") for a, _ in launches)
    assert {KINDS[kind[b]] for _, b in launches} == {"kernel", "copy", "communication"}
    assert all(told.start[a] <= told.start[b] for a, b in launches)
    meets = [(a, b) for a, b, k in zip(told.link_from, told.link_to, told.link_kind, strict=True) if k == 1]
    assert len(meets) == 3 * 3  # three collectives, and three ranks that wait for the last one
    assert all(name[a] == name[b] and told.tracks[track[a]].rank != told.tracks[track[b]].rank for a, b in meets)

    page = visit.open(f"/timeline/{TRAIN}?step=2")
    assert int(page.locator(".timeline").get_attribute("data-arrows")) >= len(meets)
    kernel = int(launches[5][1])
    page.evaluate("span => document.querySelector('.timeline').tools.choose(span, true)", kernel)
    page.get_by_role("button", name=re.compile("^launched by")).click()
    assert page.evaluate(CHOSEN) == launches[5][0]
    page.keyboard.press("f")
    assert page.evaluate(CHOSEN) == kernel
    page.evaluate("span => document.querySelector('.timeline').tools.choose(span, true)", int(meets[0][0]))
    assert page.get_by_role("button", name=re.compile("^kept waiting: rank")).count() == 3
    page.get_by_role("button", name="Arrows").click()
    page.wait_for_function("() => document.querySelector('.timeline').dataset.arrows === '0'")
    assert page.get_by_role("button", name="Arrows").get_attribute("aria-pressed") == "false"


def test_a_drag_measures(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=2")
    card, line = page.locator(".timeline"), "document.querySelector('.timeline').tools.line"
    box = card.locator(".window canvas").bounding_box()
    y = box["y"] + 120
    view = page.evaluate(f"{line}.view")
    page.mouse.move(box["x"] + 400, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, y + 10, steps=4)
    page.mouse.up()
    assert page.evaluate(f"{line}.view") == view  # nothing has moved
    start, end = page.evaluate(f"{line}.measured")
    said = card.locator(".measured").inner_text()
    # Counted and added up once more, in the simplest way.
    expected = page.evaluate(
        """([from, until]) => {
            const s = document.querySelector('.timeline').tools.spans;
            return s.tracks.map((track) => {
                const inside = [];
                let count = 0;
                for (let n = track.from; n < track.to; n++) {
                    const end = s.start[n] + s.length[n];
                    if (s.start[n] >= until || end <= from || s.kindOf(n) === 'gap') continue;
                    count += 1;
                    if (s.kindOf(n) !== 'mark') inside.push([Math.max(s.start[n], from), Math.min(end, until)]);
                }
                inside.sort((a, b) => a[0] - b[0]);
                let busy = 0, reach = from;
                for (const [a, b] of inside) {
                    busy += Math.max(0, b - Math.max(a, reach));
                    reach = Math.max(reach, b);
                }
                return [`rank ${track.rank}, ${track.label}`, count, busy / (until - from)];
            });
        }""",
        [start, end],
    )
    total = sum(count for _, count, _ in expected)
    assert f"{total:,} events" in said
    rows = card.locator(".measured tbody tr")
    assert rows.count() == len([1 for _, count, _ in expected if count])
    for label, count, share in expected:
        if count:
            cells = rows.filter(has_text=label).first.locator("td").all_inner_texts()
            assert int(cells[1].replace(",", "")) == count
            assert float(cells[3].removesuffix(" %")) == pytest.approx(100 * share, abs=0.6)
    # With Shift the same drag moves, and Escape forgets the measure.
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 600, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, y, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert page.evaluate(f"{line}.view") != view
    card.locator(".window").press("Escape")
    assert card.locator(".measured").is_hidden()


def test_the_critical_path_is_drawn_and_told(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=1&until=3")
    button = page.get_by_role("button", name="Critical path")
    button.click()
    page.wait_for_function("() => document.querySelector('.timeline').dataset.pieces")
    assert button.get_attribute("aria-pressed") == "true"
    told = page.locator(".critical").inner_text()
    assert re.search(r"over ranks? .*: kernel \d+ %", told)
    pieces = page.evaluate("document.querySelector('.timeline').tools.told.pieces")
    assert all(a[4] == b[3] for a, b in pairwise(pieces)), "from one end to the other, without gaps"
    page.locator(".critical tbody button").first.click()
    first = page.evaluate(CHOSEN)
    assert (
        page.evaluate("n => document.querySelector('.timeline').tools.spans.nameOf(n)", first)
        == page.locator(".critical tbody button").first.inner_text()
    )
    page.locator(".window").press("n")
    assert page.evaluate(CHOSEN) != first
    page.locator(".window").press("p")
    assert page.evaluate(CHOSEN) == first
    button.click()
    assert page.locator(".critical").is_hidden()


def test_the_gaps_of_a_stream_say_their_cause(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=2")
    names = page.evaluate("document.querySelector('.timeline').tools.spans.names")
    assert {"gap: input", "gap: other stream"} <= set(names)
    rows = page.locator("#grid-gaps tbody tr")
    assert rows.filter(has_text="the script waits for its loader").count() >= 4
    page.get_by_role("searchbox", name="Find an event").fill("gap: input")
    page.get_by_role("searchbox", name="Find an event").press("Enter")
    assert "gap: input" in page.locator(".timeline .detail").inner_text()
    assert "gap of a stream" in page.locator(".timeline .kinds").inner_text()


def test_keys_reach_every_event(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=2")
    page.get_by_role("searchbox", name="Find an event").focus()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "window":
            break
    else:
        raise AssertionError("Tab does not lead to the time line")
    rows = page.evaluate("document.querySelector('.timeline').tools.spans.rows.map((r) => [r.from, r.to])")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(CHOSEN) >= 0
    for _ in range(40):  # to the very first row
        page.keyboard.press("ArrowUp")
    seen = set()
    for number, (start, end) in enumerate(rows):
        page.keyboard.press("Home")
        assert page.evaluate(CHOSEN) == start, f"row {number}"
        # All events of a row: in the page, because a key takes a test some milliseconds.
        seen |= set(
            page.evaluate(
                """count => {
                    const place = document.querySelector('.window'), found = [];
                    const tools = document.querySelector('.timeline').tools;
                    for (let n = 0; n < count; n++) {
                        found.push(tools.line.chosen);
                        place.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
                    }
                    return found;
                }""",
                end - start,
            )
        )
        page.keyboard.press("End")
        assert page.evaluate(CHOSEN) == end - 1
        page.keyboard.press("ArrowDown")
    assert seen == set(range(rows[-1][1])), "every event was chosen"
    detail = page.locator(".timeline .detail")
    assert detail.get_attribute("aria-live") == "polite"
    assert re.search(r"rank 3, GPU 3, stream 20", detail.inner_text())
    page.keyboard.press("m")
    assert page.locator(".measured").is_visible()
    before = page.locator(".timeline .status").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_function("said => document.querySelector('.timeline .status').textContent !== said", arg=before)


def test_a_report_has_the_time_line_with_its_path(browser, records, tmp_path):
    target = tmp_path / "report.html"
    export(records, TRAIN, target)
    page = browser.new_page()
    page.goto(target.as_uri())
    page.wait_for_function("() => document.querySelector('.timeline[data-ready]')")
    page.get_by_role("button", name="Critical path").click()
    page.wait_for_function("() => document.querySelector('.timeline').dataset.pieces")
    assert page.locator(".critical tbody tr").count() > 3
    page.close()
