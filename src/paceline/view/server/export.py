"""Exports one record as one self-contained HTML file.

Only our scripts can run in the file: its content security policy lists their hashes, and these scripts contain no text
of a record.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from markupsafe import Markup

from paceline.errors import PacelineError, RecordError, UsageError
from paceline.reports.report import Sentence
from paceline.view.records.library import Library
from paceline.view.records.limits import ViewLimits
from paceline.view.records.record import Opened
from paceline.view.server import render
from paceline.view.server.site import Kind, pages_of
from paceline.view.ui.blocks import Page

SCRIPTS = (
    "theme.js",
    *("scales.js", "charts.js", "chart-table.js"),
    *("app.js", "compare.js"),
    *("spans.js", "timeline.js", "timeline-tools.js"),
)


def export(root: Path, name: str, target: Path, *, limits: ViewLimits | None = None) -> tuple[Path, int]:
    """Writes the report of a record (no name: the newest). Returns the record's folder and the report's bytes."""
    library = Library(root, limits)
    if not name:
        name = next(iter(library.names()), "")
        if not name:
            raise UsageError(f"There is no record in {root}.", advice="Make one: paceline run -n 2 train.py")
    record = library.open(name)
    text = report(record).encode(errors="replace")
    try:
        _write(target, text)
    except OSError as error:
        raise UsageError(
            f"--export {target}: {error.strerror or error}.", advice="Type the path of a file that can be written."
        ) from error
    return record.folder.path, len(text)


def _write(target: Path, text: bytes) -> None:
    """A new file is private to its owner, as the record is. An existing file keeps its permissions."""
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text)


def report(record: Opened) -> str:
    """The report of a record, as one HTML document."""
    pages = [(kind, _page(record, kind)) for kind in pages_of(record) if kind.in_report]
    texts = [_safe((render.STATIC / each).read_text()).encode() for each in SCRIPTS]
    files = {
        "css": Markup((render.STATIC / "app.css").read_text()),
        "scripts": [Markup(text.decode()) for text in texts],
        "policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        f"form-action 'none'; script-src {' '.join(map(_hash, texts))}",
    }
    return render.render_report(record, pages, files)


def _page(record: Opened, kind: Kind) -> Page:
    """A page of the report, or its error as a note, so that one damaged file does not prevent the report."""
    try:
        return kind.build(record, {"report": "1"})
    except (PacelineError, RecordError) as error:
        return Page(title=kind.title, blocks=[Sentence(error.message, "bad", error.advice)])


def _safe(text: str) -> str:
    """A script, escaped so that nothing in it ends the script element."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
