"""`paceline view`: shows all records in a browser, or writes one record into an HTML file."""

from __future__ import annotations

import os
import re
import stat
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from paceline.cli import options
from paceline.cli.help import verb
from paceline.cli.need import need
from paceline.cli.session import Session
from paceline.errors import UsageError
from paceline.units import size

if TYPE_CHECKING:
    from paceline.view.records.limits import ViewLimits

WHERE = "Server"
LIMITS = "Page limits"
Chosen = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RECORD | TRACE …]",
        help="Record to open first; or traces from elsewhere, one file per rank: JSON of torch, Chrome or Perfetto "
        "(.json, .json.gz), SQLite of Nsight Systems. Default: the list of records.",
        show_default=False,
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on. One that other machines can reach needs --token-file.",
        show_default="127.0.0.1",
        rich_help_panel=WHERE,
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port",
        metavar="N",
        min=0,
        max=65535,
        help="Port to listen on.",
        show_default="a free port",
        rich_help_panel=WHERE,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TEXT",
        help="Access token required to open the pages. Visible in the process list: prefer --token-file.",
        show_default="a new token",
        rich_help_panel=WHERE,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the access token. Only you may have read permission.",
        show_default=False,
        rich_help_panel=WHERE,
    ),
]
PageSeconds = Annotated[
    float,
    typer.Option(
        "--page-seconds",
        metavar="S",
        min=0.1,
        help="Time limit for reading a record's traces, and for each table made of them.",
        rich_help_panel=LIMITS,
    ),
]
MostEvents = Annotated[
    int,
    typer.Option(
        "--most-events",
        metavar="N",
        min=1,
        help="Most trace events to read per record; a million events take about 250 MB of memory.",
        rich_help_panel=LIMITS,
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.", rich_help_panel=WHERE)]
Export = Annotated[
    Path | None,
    typer.Option(
        "--export",
        metavar="FILE",
        help="Write RECORD, or the newest record, into one self-contained HTML file instead.",
        show_default=False,
        rich_help_panel=options.OUTPUT,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command(
        "view",
        cls=verb(
            "paceline view",
            "paceline view --open paceline-runs/2026-11-15T10-22-31-train",
            "paceline view trace.json.gz",
            "paceline view --export report.html",
        ),
    )(view)


def view(
    context: typer.Context,
    chosen: Chosen = None,
    host: Host = None,
    port: Port = 0,
    token: Token = None,
    token_file: TokenFile = None,
    open_browser: Open = False,
    page_seconds: PageSeconds = 30.0,
    most_events: MostEvents = 8_000_000,
    export: Export = None,
    record: options.RecordParent = options.RECORDS,
    json: options.Json = False,
) -> None:
    session = Session.of(context, json=json)
    need("view", "view")
    from paceline.view.records.limits import ViewLimits

    limits = ViewLimits(seconds=page_seconds, events=most_events)
    traces = chosen if chosen and any(path.is_file() for path in chosen) else None
    with TemporaryDirectory(prefix="paceline-view-") if traces else nullcontext("") as folder:
        if traces:
            from paceline.view.records.adopted import adopt

            root, name = Path(folder), adopt(traces, Path(folder))
        else:
            root, name = _place(chosen or [], record)
        if export is not None:
            _export(session, root, name, export, limits, json=json)
        else:
            token = _token(host, token, token_file)
            _serve(session, root, name, limits, host, port, token, foreign=bool(traces), browse=open_browser, json=json)


def _token(host: str | None, token: str | None, file: Path | None) -> str:
    """The access token: the given one, or a new one. UsageError if it is not safe enough."""
    from paceline.view.server import serve

    if file is not None:
        if token is not None:
            raise UsageError("--token and --token-file were both given.", advice="Leave out --token.")
        token = _read_token(file)
    if host is not None and host != serve.HERE and token is None:
        raise UsageError(
            f"--host {host} opens the pages to other machines, but no access token was given.",
            advice=f"Put a token of {serve.SHORTEST} characters or more into a file: --host {host} --token-file FILE",
        )
    if token is not None and not re.fullmatch(rf"[A-Za-z0-9_.~-]{{{serve.SHORTEST},512}}", token):
        raise UsageError(
            f"The access token is not valid: it needs {serve.SHORTEST} to 512 letters, digits or _ . ~ -",
            advice="Make a token: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return token or serve.new_token()


def _serve(
    session: Session,
    root: Path,
    name: str,
    limits: ViewLimits,
    host: str | None,
    port: int,
    token: str,
    *,
    foreign: bool,
    browse: bool,
    json: bool,
) -> None:
    """Serves until Ctrl-C. `foreign`: `name` is made of traces that were taken elsewhere, and opens with them."""
    from paceline.view.server import serve
    from paceline.view.server.browser import open_browser

    bound = serve.listen(host or serve.HERE, port)
    page = "timeline" if foreign else "run"
    url = serve.address(bound, token, f"/{page}/{quote(name)}" if name else "/")
    if json:
        session.print_document({"url": url, "records": str(root)})
    else:
        console = Console(highlight=False, markup=False)
        console.print(f"trace:   {name}" if foreign else f"records: {root}", soft_wrap=True)
        console.print(f"open:    {url}", soft_wrap=True, style="bold")
        console.print("Ctrl-C stops the server.")
    try:
        with open_browser(url) if browse else nullcontext():
            running = serve.server(root, bound, token=token, limits=limits, ahead=name if foreign else "")
            running.run(sockets=[bound])
    except KeyboardInterrupt:
        pass  # Ctrl-C is the normal way to stop the server


def _read_token(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            told = os.fstat(file.fileno())
            text = file.read(1024).strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: {error.strerror}.", advice="Name a file that you can read.") from error
    if stat.S_ISREG(told.st_mode) and told.st_mode & 0o077:
        raise UsageError(
            f"--token-file {path}: other accounts can read this file (mode {stat.S_IMODE(told.st_mode):o}).",
            advice=f"Type: chmod 600 {path}",
        )
    return text


def _place(asked: list[Path], parent: Path) -> tuple[Path, str]:
    """The folder of records, and the name in that folder of the chosen record; empty for the list."""
    if len(asked) > 1:
        raise UsageError(
            f"{len(asked)} records were given; one can be opened first.",
            advice="Name one record, or the folder of all: paceline view --record DIR. Several traces can be opened.",
        )
    if not asked:
        if not parent.is_dir():
            raise options.no_records(parent, "view")
        return parent, ""
    chosen = asked[0]
    if not (chosen / "run.json").is_file():
        if chosen.is_dir() and any(chosen.glob("*/run.json")):
            return chosen, ""
        raise UsageError(
            f"{chosen} is not a record: there is no run.json in it.",
            advice="Name a record's folder, such as paceline-runs/2026-11-15T10-22-31-train, or a trace's file.",
        )
    chosen = chosen.resolve()
    if parent.is_dir() and chosen.is_relative_to(parent.resolve()):
        return parent, str(chosen.relative_to(parent.resolve()))
    return chosen.parent, chosen.name


def _export(session: Session, root: Path, name: str, target: Path, limits: ViewLimits, *, json: bool) -> None:
    from paceline.view.server.export import export

    session.record, written = export(root, name, target, limits=limits)
    if json:
        session.print_document({"export": str(target), "bytes": written})
    else:
        Console(highlight=False, markup=False).print(f"report: {target} ({size(written)})", soft_wrap=True)
