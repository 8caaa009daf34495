"""The web app: addresses, and what becomes of an error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from paceline.errors import PacelineError, RecordError
from paceline.view import render
from paceline.view.blocks import Note, Page
from paceline.view.gate import Gate
from paceline.view.library import Library
from paceline.view.opened import Opened
from paceline.view.pages import runs
from paceline.view.site import PAGES, Kind

OURS = {
    "app.css": "text/css",
    **dict.fromkeys(("theme.js", "app.js", "timeline.js", "live.js"), "text/javascript"),
}
LASTING = {"Cache-Control": "private, max-age=86400"}


def make_app(root: Path, *, token: str, hosts: frozenset[str] | None = None) -> ASGIApp:
    """The app over a folder of records. `hosts`: names under which it may be asked for; None: any."""
    library = Library(root)
    routes = [
        Route("/", _runs(library)),
        Route("/static/{file}", _static),
        *(Route(f"/{kind.key}/{{name:path}}", _page(library, kind)) for kind in PAGES),
        Route("/{form:str}/{page:str}/{grid:str}/{name:path}", _download(library)),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _missing, PacelineError: _wrong, Exception: _bug},  # type: ignore[dict-item]
    )
    return Gate(app, token=token, hosts=hosts)


def _runs(library: Library) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        asked = dict(request.query_params)
        page = await run_in_threadpool(runs.build, library)
        return HTMLResponse(await run_in_threadpool(render.render_page, page, asked=asked, base="/", here="runs"))

    return answer


def _page(library: Library, kind: Kind) -> Callable[[Request], Any]:
    def make(name: str, asked: dict[str, str], base: str) -> str:
        record = library.open(name)
        with record.lock:
            page = build(record, kind, asked)
            return render.render_page(page, asked=asked, base=base, record=record, here=kind.key)

    async def answer(request: Request) -> Response:
        asked = dict(request.query_params)
        return HTMLResponse(await run_in_threadpool(make, request.path_params["name"], asked, request.url.path))

    return answer


def build(record: Opened, kind: Kind, asked: dict[str, str]) -> Page:
    """RecordError where this record has no such page."""
    if not kind.there(record):
        raise RecordError(
            f"{record.name} has nothing for the page “{kind.title}”.", advice="Its other pages are named at the side."
        )
    return kind.build(record, asked)


def _download(library: Library) -> Callable[[Request], Any]:
    """`/csv/run/steps/NAME` is the grid `steps` of the page `run`."""

    def make(form: str, key: str, name: str, table: str, asked: dict[str, str]) -> Response:
        if key == "runs":
            page = runs.build(library)
        else:
            kind = next((kind for kind in PAGES if kind.key == key), None)
            if kind is None:
                raise HTTPException(404)
            record = library.open(name)
            with record.lock:
                page = build(record, kind, asked)
        grid = page.grid(table)
        if grid is None or form not in ("csv", "json"):
            raise HTTPException(404)
        grid = grid.arranged(asked)
        # Our own name and no other: nothing of a record gets into a header.
        headers = {"Content-Disposition": f'attachment; filename="{grid.name}.{form}"'}
        if form == "csv":
            return Response(grid.as_csv(), media_type="text/csv; charset=utf-8", headers=headers)
        return Response(grid.as_json(), media_type="application/json", headers=headers)

    async def answer(request: Request) -> Response:
        told = request.path_params
        asked = dict(request.query_params)
        return await run_in_threadpool(make, told["form"], told["page"], told["name"], told["grid"], asked)

    return answer


async def _static(request: Request) -> Response:
    name = request.path_params["file"]
    if name == "plotly.js":
        return FileResponse(str(plotly()), media_type="text/javascript", headers=LASTING)
    if name not in OURS:
        raise HTTPException(404)
    return FileResponse(render.STATIC / name, media_type=OURS[name], headers={"Cache-Control": "no-cache"})


def plotly() -> Any:
    """plotly.js, as plotly's wheel carries it."""
    return resources.files("plotly") / "package_data" / "plotly.min.js"


# -- errors ------------------------------------------------------------------------------------------------------------


async def _missing(request: Request, error: HTTPException) -> Response:
    page = Page(
        title="Not here", blocks=[Note(text=f"There is no page {request.url.path[:200]}.", links=[("All runs", "/")])]
    )
    return _error(page, error.status_code)


async def _wrong(request: Request, error: PacelineError) -> Response:
    missing = isinstance(error, RecordError) and "There is no record" in error.message
    note = Note(text=error.message, advice=error.advice, tone="bad", links=[("All runs", "/")])
    return _error(Page(title="This cannot be shown", blocks=[note]), 404 if missing else 422)


async def _bug(request: Request, error: Exception) -> Response:
    traceback.print_exception(error, file=sys.stderr)
    told = f"This is a bug in paceline: {type(error).__name__}. Its traceback is where `paceline view` runs."
    return _error(Page(title="A bug", blocks=[Note(text=told, tone="bad", links=[("All runs", "/")])]), 500)


def _error(page: Page, status: int) -> Response:
    return HTMLResponse(render.render_page(page, asked={}, base="/", status=str(status)), status_code=status)
