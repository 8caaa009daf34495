"""The web app: its routes, and its error pages."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from anyio import to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from paceline.errors import NoRecordError, PacelineError, RecordError, TraceError
from paceline.record.about.labels import labels_of, read_labels, write_labels
from paceline.reports.report import Sentence
from paceline.view.pages import compare, runs, timeline, topology
from paceline.view.records.contents import comparable, shows
from paceline.view.records.layout import overview, pack
from paceline.view.records.library import Library
from paceline.view.records.limits import ViewLimits
from paceline.view.records.path import path_of
from paceline.view.records.record import Opened
from paceline.view.records.spans import spans_of
from paceline.view.server import render
from paceline.view.server.auth import Gate
from paceline.view.server.follow import follow
from paceline.view.server.site import MOVED, PAGES, Kind
from paceline.view.ui.blocks import Page
from paceline.view.ui.links import href

OURS = {
    "app.css": "text/css",
    **dict.fromkeys(
        ("theme.js", "app.js", "scales.js", "charts.js", "chart-table.js", "compare.js", "live.js"), "text/javascript"
    ),
    **dict.fromkeys(("spans.js", "timeline.js", "timeline-tools.js"), "text/javascript"),
}
MOST_COMPARED = 50  # runs
LONGEST_LABELS = 64 << 10  # bytes of a request that changes labels
VISITORS = 32  # connections that follow a run at the same time


def make_app(
    root: Path,
    *,
    token: str,
    hosts: frozenset[str] | None = None,
    limits: ViewLimits | None = None,
    ahead: str = "",
) -> ASGIApp:
    """The app for a folder of records. `hosts`: the accepted host names; None accepts any. `ahead`: the record whose
    traces are read before a page asks for them."""
    shelf = Shelf(Library(root, limits))
    library = shelf.library
    if ahead:
        threading.Thread(target=_read_ahead, args=(library, ahead), daemon=True).start()
    routes = [
        Route("/", _runs(library)),
        Route("/static/{file}", _static),
        Route("/compare", _compare(shelf)),
        Route("/machine", _answer(_machine)),
        Route("/labels/{name:path}", _label(library), methods=["POST"]),
        Route("/spans/{name:path}", _steps(shelf, _spans)),
        Route("/overview/{name:path}", _steps(shelf, _overview)),
        Route("/path/{name:path}", _steps(shelf, _path)),
        Route("/follow/{name:path}", _follow(library)),
        *(Route(f"/{kind.key}/{{name:path}}", _page(shelf, kind)) for kind in PAGES),
        *(Route(f"/{old}/{{name:path}}", _moved(new)) for old, new in MOVED.items()),
        Route("/{form:str}/{page:str}/{grid:str}/{name:path}", _download(shelf)),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _not_found, PacelineError: _paceline_error, Exception: _unexpected_error},  # type: ignore[dict-item]
    )
    return Gate(app, token=token, hosts=hosts)


def _read_ahead(library: Library, name: str) -> None:
    """Reads the traces of a record and lays out their time line. Both, or their error, are kept for the first page."""
    with suppress(PacelineError):
        record = library.open(name)
        timeline.build(record, {})


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The query of a request."""

    query: dict[str, str]
    path: str
    kept: list[tuple[str, str]]

    @classmethod
    def by(cls, request: Request) -> PageQuery:
        pairs = request.query_params.multi_items()
        kept = [(key, value) for key, value in pairs if key not in ("grid", "q", "sort", "order", "token")]
        return cls(dict(pairs), request.url.path, kept)

    @property
    def names(self) -> list[str]:
        """Names of the runs to compare."""
        return [value for key, value in self.kept if key == "run"]

    def render(
        self, page: Page, here: str, record: Opened | None = None, others: Sequence[tuple[str, str]] = ()
    ) -> Response:
        return HTMLResponse(
            render.render_page(
                page, asked=self.query, base=self.path, kept=self.kept, record=record, here=here, others=others
            )
        )


def _answer(make: Callable[[PageQuery, dict[str, str]], Response]) -> Callable[[Request], Any]:
    """An endpoint that calls `make` with the query and the path parameters, in a thread, because pages read files."""

    async def answer(request: Request) -> Response:
        return await run_in_threadpool(make, PageQuery.by(request), request.path_params)

    return answer


def _runs(library: Library) -> Callable[[Request], Any]:
    return _answer(lambda asked, _: asked.render(runs.build(library), "runs"))


class Shelf:
    """The records, and the schedule of the pages that read their traces."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.turns = Turns(library.limits)

    async def answer(self, names: list[str], make: Callable[..., Response], *, long: bool) -> Response:
        """Calls `make` with these records in a thread, because pages read files. `long`: the call may take long if a
        record has traces."""
        records = [await run_in_threadpool(self.library.open, name) for name in names]
        if long and await run_in_threadpool(_any_traced, records):
            return await self.turns.take(records, partial(make, *records))
        return await run_in_threadpool(make, *records)


def _any_traced(records: list[Opened]) -> bool:
    return any(record.trace_paths or record.spans_paths for record in records)


def _page(shelf: Shelf, kind: Kind) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        asked = PageQuery.by(request)

        def make(record: Opened) -> Response:
            others = comparable(shelf.library, record) if kind.key == "run" else []
            return asked.render(build(record, kind, asked.query), kind.key, record, others)

        return await shelf.answer([request.path_params["name"]], make, long=kind.traced)

    return answer


class _Typed(msgspec.Struct):
    """Labels, as typed on a page."""

    name: str = ""
    tags: str = ""


def _label(library: Library) -> Callable[[Request], Any]:
    """Changes the name and the tags of a record: all that a visitor can change."""

    def change(name: str, body: bytes) -> Response:
        try:
            typed = msgspec.json.decode(body, type=_Typed)
            folder = library.find(name)
            tags = typed.tags.replace(",", " ").split()
            labels = labels_of(typed.name.strip(), tags, read_labels(folder).note)
            write_labels(folder, labels)
        except msgspec.DecodeError as error:
            return PlainTextResponse(f"These are no labels: {error}.", status_code=422)
        except PacelineError as error:
            return PlainTextResponse(f"{error.message} {error.advice}".strip(), status_code=422)
        return Response(status_code=204)

    async def answer(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > LONGEST_LABELS:
                raise HTTPException(413)
        return await run_in_threadpool(change, request.path_params["name"], body)

    return answer


def _moved(key: str) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        return RedirectResponse(href(key, request.path_params["name"]))

    return answer


def build(record: Opened, kind: Kind, asked: dict[str, str]) -> Page:
    """Builds a page. Raises RecordError if the record has nothing for this page."""
    if not kind.listed_only and not shows(record, kind.key):
        raise RecordError(
            f"{record.name} has nothing for the page “{kind.title}”.",
            advice="Open the record's dashboard: its side bar lists the other pages.",
        )
    return kind.build(record, asked)


def _compare(shelf: Shelf) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        asked = PageQuery.by(request)
        make = partial(_compared, asked)
        return await shelf.answer(_compared_names(asked), make, long=True)

    return answer


def _compared(asked: PageQuery, *records: Opened) -> Response:
    return asked.render(compare.build(records, asked.query), "compare")


def _compared_names(asked: PageQuery) -> list[str]:
    names = list(dict.fromkeys(asked.names))
    if not 2 <= len(names) <= MOST_COMPARED:
        raise RecordError(
            f"A comparison needs two to {MOST_COMPARED} different runs; found {len(names)}.",
            advice="Tick the runs in the list.",
        )
    return names


def _machine(asked: PageQuery, _: dict[str, str]) -> Response:
    return asked.render(topology.build_machine(), "machine")


def _steps(shelf: Shelf, make: Callable[[Opened, int, int], Response]) -> Callable[[Request], Any]:
    """What a time line loads about the steps from `step` to `until`."""

    async def answer(request: Request) -> Response:
        asked = request.query_params
        numbers = {"step": asked.get("step", ""), "until": asked.get("until") or asked.get("step", "")}
        for key, step in numbers.items():
            if not step.isdecimal() or len(step) > 12:
                raise RecordError(f"{key}={step[:40]!r} is not the number of a step.")
        first, last = map(int, numbers.values())
        return await shelf.answer([request.path_params["name"]], lambda record: make(record, first, last), long=True)

    return answer


def _spans(record: Opened, step: int, until: int) -> Response:
    return Response(pack(spans_of(record, step, until)), media_type="application/octet-stream")


def _overview(record: Opened, step: int, until: int) -> Response:
    return Response(pack(overview(spans_of(record, step, until))), media_type="application/octet-stream")


def _path(record: Opened, step: int, until: int) -> Response:
    return Response(msgspec.json.encode(path_of(record, step, until)), media_type="application/json")


def _follow(library: Library) -> Callable[[Request], Any]:
    visitors = anyio.CapacityLimiter(VISITORS)

    async def answer(request: Request) -> Response:
        record = await run_in_threadpool(library.open, request.path_params["name"])
        if visitors.available_tokens < 1:
            raise HTTPException(503)

        async def events() -> AsyncIterator[bytes]:
            async with visitors:
                async for event in follow(library, record):
                    yield event

        return StreamingResponse(events(), media_type="text/event-stream")

    return answer


def _download(shelf: Shelf) -> Callable[[Request], Any]:
    """`/csv/run/steps/NAME` is the grid `steps` of the page `run`."""

    async def answer(request: Request) -> Response:
        asked, path = PageQuery.by(request), request.path_params
        names, page, long = _any_page(shelf.library, asked, path["page"], path["name"])
        return await shelf.answer(names, lambda *records: _table(asked, path, page(*records)), long=long)

    return answer


def _any_page(library: Library, asked: PageQuery, key: str, name: str) -> tuple[list[str], Callable[..., Page], bool]:
    """The names of a page's records, the function that builds the page, and whether the function may take long."""
    if key == "runs":
        return [], lambda: runs.build(library), False
    if key == "compare":
        return _compared_names(asked), lambda *records: compare.build(records, asked.query), True
    if key == "machine":
        return [], topology.build_machine, False
    kind = next((kind for kind in PAGES if kind.key == MOVED.get(key, key)), None)
    if kind is None:
        raise HTTPException(404)
    return [name], lambda record: build(record, kind, asked.query), kind.traced


def _table(asked: PageQuery, path: dict[str, str], page: Page) -> Response:
    form, grid = path["form"], page.grid(path["grid"])
    if grid is None or form not in ("csv", "json"):
        raise HTTPException(404)
    grid = grid.arranged(asked.query)
    # A file name of our own: no text of a record may get into a header.
    headers = {"Content-Disposition": f'attachment; filename="{grid.name}.{form}"'}
    if form == "csv":
        return Response(grid.as_csv(), media_type="text/csv; charset=utf-8", headers=headers)
    return Response(grid.as_json(), media_type="application/json", headers=headers)


async def _static(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in OURS:
        raise HTTPException(404)
    return FileResponse(render.STATIC / name, media_type=OURS[name], headers={"Cache-Control": "no-cache"})


# -- errors ------------------------------------------------------------------------------------------------------------


async def _not_found(request: Request, error: HTTPException) -> Response:
    page = Page(
        title="Page not found",
        blocks=[Sentence(f"There is no page {request.url.path[:200]}.", links=[("All runs", "/")])],
    )
    return _error(page, error.status_code)


async def _paceline_error(request: Request, error: PacelineError) -> Response:
    note = Sentence(error.message, "bad", error.advice, links=[("All runs", "/")])
    return _error(
        Page(title="This page cannot be shown", blocks=[note]), 404 if isinstance(error, NoRecordError) else 422
    )


async def _unexpected_error(request: Request, error: Exception) -> Response:
    text = f"This is a bug in paceline: {type(error).__name__}. The terminal of `paceline view` shows the traceback."
    return _error(Page(title="A bug", blocks=[Sentence(text, "bad", links=[("All runs", "/")])]), 500)


def _error(page: Page, status: int) -> Response:
    return HTMLResponse(render.render_page(page, asked={}, base="/"), status_code=status)


# -- turns ------------------------------------------------------------------------------------------------------------
# A page that reads traces may take as long as its time limit. So the pages of one record are built one after the other
# (they need the same tables), at most TOGETHER pages at a time, in threads of their own. A waiting request holds no
# thread, and has a timeout. All other pages are built at once, in the server's threads.


TOGETHER = 4  # pages that read traces at the same time

T = TypeVar("T")


class Turns:
    """The schedule of one server."""

    def __init__(self, limits: ViewLimits) -> None:
        self._limits = limits
        self._few = anyio.CapacityLimiter(TOGETHER)

    async def take(self, records: Sequence[Opened], make: Callable[[], T]) -> T:
        """Calls `make` when no other page reads the traces of these records. Raises TraceError if the wait takes too
        long. A page that is being built is completed, for the next request."""
        async with AsyncExitStack() as held:
            with anyio.move_on_after(self._limits.patience):
                # Lock in the order of names: requests that compare A with B and B with A must not deadlock.
                for record in sorted({record.name: record for record in records}.values(), key=lambda one: one.name):
                    await held.enter_async_context(record.turn)
                # A running thread is not cancelled: the tables have a time limit of their own.
                return await to_thread.run_sync(make, limiter=self._few)
        names = " and ".join(record.name for record in records)
        raise TraceError(
            f"{names}: waited more than {self._limits.patience:g} s for other pages that read traces.",
            advice=f"Reload the page in a moment. {self._limits.more_time}",
        )
