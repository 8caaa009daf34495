"""Renders pages to HTML. Templates escape by default, and no template exempts text of a record."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup, escape

from paceline import __version__
from paceline.charts.browser import figure
from paceline.charts.chart import Chart
from paceline.charts.words import in_words
from paceline.record.phases import PHASES
from paceline.reports.wording import say
from paceline.view.records.layout import as_text
from paceline.view.records.record import Opened
from paceline.view.server.site import Kind, pages_of
from paceline.view.ui.blocks import Curves, Page
from paceline.view.ui.grid import Grid
from paceline.view.ui.links import href

HERE = Path(__file__).parents[1]
STATIC = HERE / "static"


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"say": say, "href": href, "data": data_block, "picture": picture, "figure": figure}
    made.globals |= {"spark": spark, "about": about, "document_title": document_title}
    made.globals |= {"packed": as_text, "in_words": in_words}
    made.globals["version"] = __version__
    made.filters["with_code"] = with_code
    made.globals["phases"] = " ".join(PHASES)
    return made


def data_block(value: Any) -> Markup:
    """JSON for a data script element, escaped so that no character can end the element."""
    text = msgspec.json.encode(value).decode()
    for sign, escaped in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(sign, escaped)
    return Markup(text)


def picture(svg: str) -> str:
    """An SVG as a data URL."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def spark(values: Sequence[float]) -> Markup:
    """Numbers as a small line, without axes."""
    low, high = min(values), max(values)
    known = list(enumerate(values))
    places = [
        (60 * n / max(len(values) - 1, 1), 14 - 12 * (value - low) / (high - low) if high > low else 8)
        for n, value in known
    ]
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    words = f"from {say(values[0], 'number')} to {say(values[-1], 'number')}"
    picture = '<svg class="spark" viewBox="-1 0 62 16" role="img" aria-label="{}"><path d="{}"/></svg>'
    return Markup(picture).format(words, d)


def about(record: Opened) -> str:
    """Which run a page is of: its name, its script, and when it began."""
    run = record.run
    what = Path(run.script).name if run.verb != "bandwidth" and run.script else run.verb
    began = f", {say(run.started, 'moment')[:16]}" if run.started else ""
    return f"{record.labels.name} · {what}{began}" if record.labels.name else f"{what}{began}"


def document_title(page: Page, record: Opened | None) -> str:
    """What a browser's tab says: the page, the script and the date."""
    if record is None:
        return page.title
    told = about(record)
    if told.startswith(page.title):
        return told
    what, _, began = told.rpartition(", ")
    return f"{page.title}, {began}" if what and page.title.endswith(what) else f"{page.title} · {told}"


def render_page(
    page: Page,
    *,
    asked: Mapping[str, str],
    base: str,
    kept: Sequence[tuple[str, str]] = (),
    record: Opened | None = None,
    here: str = "",
    others: Sequence[tuple[str, str]] = (),
) -> str:
    """A complete document. `asked` is the query; `kept` are the parameters that the page's own links
    repeat; `others` are names of records that the record may be compared with, and words for each."""
    return (
        environment()
        .get_template("page.html")
        .render(
            page=page,
            blocks=arrange(page, asked, base, kept),
            record=record,
            nav=pages_of(record) if record else [],
            here=here,
            report=False,
            others=others,
            compared=[value for key, value in kept if key == "run"],
        )
    )


def render_report(record: Opened, pages: Sequence[tuple[Kind, Page]], files: Mapping[str, Any]) -> str:
    """All pages of a record in one self-contained document."""
    return (
        environment()
        .get_template("report.html")
        .render(
            record=record,
            sections=[(kind, page, arrange(page, {})) for kind, page in pages],
            files=files,
            report=True,
            compared=[],
        )
    )


def arrange(page: Page, asked: Mapping[str, str], base: str = "", kept: Sequence[tuple[str, str]] = ()) -> list[Any]:
    """The blocks as shown: tables are sorted and filtered, and a chart that would stand beside a hole is wide."""
    blocks = [
        block.arranged(asked, base=base, kept=kept) if isinstance(block, Grid) else block for block in page.blocks
    ]
    blocks = [replace(block, charts=paired(block.charts)) if isinstance(block, Curves) else block for block in blocks]
    return paired(blocks)


def paired(blocks: Sequence[Any]) -> list[Any]:
    """The same blocks; of an odd number of narrow charts in sequence, the last one is wide."""
    found = list(blocks)
    for narrow, group in groupby(enumerate(blocks), key=lambda each: isinstance(each[1], Chart) and not each[1].wide):
        charts = list(group)
        if narrow and len(charts) % 2:
            place, last = charts[-1]
            found[place] = replace(last, wide=True)
    return found


def with_code(text: str) -> Markup:
    """Text in which `words` between backticks are set as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if n % 2 else escape(part) for n, part in enumerate(parts)
    )
