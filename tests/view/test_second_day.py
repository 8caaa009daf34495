"""What a person meets on the second day, in a real browser: commands to copy, diffs, pages without devices, a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from verb_records import make_each_verb
from view_browser import Visit
from view_server import Served

from paceline.view.records.library import Library
from paceline.view.ui.what_was_run import command

pytestmark = pytest.mark.timeout(900)  # the first one may have to install a browser


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("second") / "paceline-runs"
    make_each_verb(folder)
    return folder


@pytest.fixture(scope="module")
def visit(browser, root) -> Iterator[Visit]:
    served = Served(root)
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(served.first)
    yield Visit(page, served.base)
    context.close()
    served.close()


def test_a_finding_ends_in_a_complete_command_that_can_be_copied(visit):
    page = visit.open("/run/profile")
    finding = page.locator(".finding", has_text="Matrix products")
    assert finding.locator("code").inner_text() == "paceline run -n 2 --mod precision=bf16 train.py --epochs 3"
    finding.get_by_role("button", name="Copy the command").click()
    page.wait_for_function("() => document.querySelector('.finding .copy').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == finding.locator("code").inner_text()
    commands = page.locator(".finding .type code").all_inner_texts()
    assert len(commands) == page.locator(".finding").count()
    assert not any("…" in command for command in commands), "nothing is left out"
    by_hand = page.locator(".finding", has_text="keeps the others waiting")
    assert "Then measure again" in by_hand.inner_text()
    assert by_hand.locator("code").inner_text() == "paceline profile -n 2 train.py --epochs 3"


def test_a_command_keeps_the_options_that_change_how_the_script_runs(root):
    record = Library(root).open("profile")
    record.run.settings |= {"strategy": "zero1", "batch": "keep", "whole": ["Head"], "threads": 2, "backend": None}
    told = command(record, verb="run", more=["--threads", "4"], mods=["compile"])
    assert told == ("paceline run -n 2 --strategy zero1 --whole Head --mod compile --threads 4 train.py --epochs 3")


def test_tune_says_how_to_run_it_with_a_coloured_diff_and_the_rest_by_hand(visit):
    page = visit.open("/run/tune")
    so = page.locator(".verdict", has_text="Run it so")
    assert so.locator("code").inner_text() == "paceline run --mod precision=bf16 --mod channels_last train.py"
    diff = page.locator(".diff pre")
    colours = {
        each.inner_text().strip(): each.evaluate("each => getComputedStyle(each).backgroundColor")
        for each in diff.locator("span").all()
    }
    assert colours["+x = 2"] != colours["-x = 1"]
    assert colours["+x = 2"] != colours["@@ -1 +1 @@"]
    by_hand = page.locator(".text", has_text="By hand: precision=bf16")
    assert "    loss" in by_hand.locator("pre").inner_text(), "indented"


def test_a_run_without_a_device_shows_no_empty_device_pages_and_columns(visit):
    page = visit.open("/run/cpu")
    pages = page.locator("nav.side a").all_inner_texts()
    assert "Load" in pages
    assert not {"Devices", "Kernels", "Waits"} & set(pages)
    page = visit.open("/ops/cpu")
    heads = page.locator("#grid-ops th").all_inner_texts()
    assert "host self" in heads
    assert not [head for head in heads if "device" in head or "kernels" in head or "tensor" in head or "matrix" in head]
    page = visit.open("/ops/profile")
    assert "device self" in page.locator("#grid-ops th").all_inner_texts()
    assert "GPU" not in visit.open("/topology/cpu").locator("#grid-workers th").all_inner_texts()


def test_the_topology_follows_the_theme_and_fits_a_phone(visit):
    page = visit.open("/topology/profile")
    shown = "() => [...document.querySelectorAll('.picture img')].filter((each) => each.checkVisibility())"
    light = page.evaluate(f"({shown})().map((each) => each.className)")
    page.get_by_label("Light or dark").click()
    dark = page.evaluate(f"({shown})().map((each) => each.className)")
    assert (light, dark) == (["in-light"], ["in-dark"])
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate(f"({shown})().map((each) => each.naturalWidth)") == [340], "drawn for a phone, not shrunk"
    assert page.evaluate(f"({shown})()[0].getBoundingClientRect().right <= innerWidth")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate("localStorage.clear()")
    assert visit.complaints == []


@pytest.mark.parametrize("name", ["timed", "profile"])
def test_phases_have_their_colours_in_every_time_line(visit, name):
    page = visit.open(f"/timeline/{name}?step=2")
    legend = page.locator(".timeline .kinds").inner_text()
    assert {"data", "forward", "backward", "optimizer"} <= set(legend.split())
    found = page.evaluate(
        """() => {
            const canvas = document.querySelector('.timeline .window canvas'), pen = canvas.getContext('2d');
            const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
            for (let at = 0; at < pixels.length; at += 4) seen.add([...pixels.slice(at, at + 3)].join());
            const rgb = (name) => colour(name).match(/[0-9a-f]{2}/gi).map((each) => parseInt(each, 16)).join();
            return ['data', 'forward', 'backward', 'optimizer'].filter((name) => seen.has(rgb(name)));
        }"""
    )
    assert found == ["data", "forward", "backward", "optimizer"]
