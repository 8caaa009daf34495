"""One browser for all tests of the pages, and pages that complain about nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from view_records import TOKEN
from view_server import Served

PATIENCE = 120_000  # milliseconds: a busy machine is slow, which is no fault of a page
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
# A number that could not be placed shows up as NaN in the drawing.
INVALID = """() => [...document.querySelectorAll('.chart svg *')].filter((each) => [...each.attributes].some(
    (one) => /NaN|Infinity|undefined/.test(one.value))).map((each) => each.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def served(records) -> Iterator[Served]:
    made = Served(records)
    yield made
    made.close()


@pytest.fixture(scope="package")
def browser(chromium) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    others = set(psutil.Process().children())
    with playwright.sync_playwright() as started:
        (driver,) = set(psutil.Process().children()) - others
        made = started.chromium.launch(executable_path=chromium, args=FLAGS, timeout=PATIENCE)
        yield made
        with ended(driver), contextlib.suppress(playwright.Error):
            made.close()


@contextmanager
def ended(driver: psutil.Process) -> Iterator[None]:
    """The driver ends when its standard input does, which a fork of this process may keep open, and a browser when it
    likes: neither is waited for without a limit, after all tests have passed."""
    processes = [driver, *driver.children(recursive=True)]

    def kill() -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    impatient = threading.Timer(PATIENCE / 1000, kill)
    impatient.start()
    yield
    impatient.cancel()
    kill()


class Visit:
    """A page, and everything that it complained about."""

    def __init__(self, page: Any, base: str) -> None:
        page.set_default_timeout(PATIENCE)
        self.page, self.base = page, base
        self.complaints: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, address: str) -> Any:
        self.page.goto(self.base + address)
        self.page.wait_for_function(
            "() => !document.querySelector('.chart:not([data-drawn])') "
            "&& !document.querySelector('.timeline:not([data-ready])')"
        )
        return self.page

    def stay(self, address: str) -> Any:
        """The page that is open already, where it is this one: for tests that find it as any other has left it."""
        return self.page if self.page.url == self.base + address else self.open(address)

    def check(self) -> None:
        """That the page is whole, valid and no wider than a screen, or a phone."""
        page = self.page
        assert page.locator("h1").count() == 1
        assert page.locator(".note.bad").count() == 0
        assert page.evaluate("window.hacked") is None
        assert page.evaluate(INVALID) == [], "a part of a chart has no place"
        fits = "document.documentElement.scrollWidth <= innerWidth"
        assert page.evaluate(fits)
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate(fits), "too wide for a phone"
        page.set_viewport_size({"width": 1280, "height": 800})


@contextmanager
def visiting(browser: Any, root: Path) -> Iterator[Visit]:
    """A wide page on a server of its own over this folder."""
    served = Served(root)
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(served.first)
    yield Visit(page, served.base)
    context.close()
    served.close()


@pytest.fixture(scope="module")
def context(browser, served) -> Iterator[Any]:
    made = browser.new_context(viewport={"width": 1280, "height": 800})
    made.set_default_timeout(PATIENCE)
    page = made.new_page()
    page.goto(served.first)
    assert TOKEN not in page.url
    page.close()
    yield made
    made.close()


@pytest.fixture(scope="module")
def only_page(context, served) -> Visit:
    """One for all: a browser reads a large script faster where it has read it before."""
    return Visit(context.new_page(), served.base)


@pytest.fixture
def visit(only_page) -> Iterator[Visit]:
    only_page.complaints.clear()
    only_page.page.set_viewport_size({"width": 1280, "height": 800})
    yield only_page
    only_page.page.unroute_all()
    assert only_page.complaints == []
