"""`paceline view`: shows all records in a browser, or writes one record into an HTML file."""

from __future__ import annotations

import os
import re
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from paceline.cli.shared import options
from paceline.cli.shared.example_first import verb
from paceline.cli.shared.session import Session
from paceline.errors import UsageError
from paceline.units import size

if TYPE_CHECKING:
    from paceline.view.server.limits import ViewLimits

WHERE = "Server"
LIMITS = "Page limits"
Chosen = Annotated[
    Path | None,
    typer.Argument(metavar="[RECORD]", help="Record to open first. Default: the list of records.", show_default=False),
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
    """Shows records in a browser: dashboards, ops, kernels, timelines, results. Works offline."""
    session = Session.of(context, json=json)
    root, name = _place(chosen, record)
    from paceline.view.server.limits import ViewLimits

    limits = ViewLimits(seconds=page_seconds, events=most_events)
    if export is not None:
        _export(session, root, name, export, limits, json=json)
        return
    from paceline.view.server import serve
    from paceline.view.server.browser import open_browser as opened_in_browser

    if token_file is not None:
        if token is not None:
            raise UsageError("--token and --token-file were both given.", advice="Leave out --token.")
        token = _read_token(token_file)
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
    token = token or serve.new_token()
    bound = serve.listen(host or serve.HERE, port)
    url = serve.address(bound, token, f"/run/{quote(name)}" if name else "/")
    if json:
        session.print_document({"url": url, "records": str(root)})
    else:
        console = Console(highlight=False, markup=False)
        console.print(f"records: {root}", soft_wrap=True)
        console.print(f"open:    {url}", soft_wrap=True, style="bold")
        console.print("Ctrl-C stops the server.")

    try:
        with opened_in_browser(url) if open_browser else nullcontext():
            serve.server(root, bound, token=token, limits=limits).run(sockets=[bound])
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


def _place(chosen: Path | None, parent: Path) -> tuple[Path, str]:
    """The folder of records, and the name in that folder of the chosen record; empty for the list."""
    if chosen is None:
        if not parent.is_dir():
            raise UsageError(
                f"--record {parent}: there is no such folder.",
                advice="Make a record: paceline run -n 2 train.py; or name the folder: --record DIR",
            )
        return parent, ""
    if not (chosen / "run.json").is_file():
        if chosen.is_dir() and any(chosen.glob("*/run.json")):
            return chosen, ""
        raise UsageError(
            f"{chosen} is not a record: there is no run.json in it.",
            advice="Name a record's folder, such as paceline-runs/2026-11-15T10-22-31-train.",
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
