"""`paceline view`: all records in a browser, or one in a file."""

from __future__ import annotations

import re
import threading
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from paceline.cli import options
from paceline.cli.example_first import verb
from paceline.cli.session import Session
from paceline.errors import UsageError

WHERE = "Where it listens"
Chosen = Annotated[
    Path | None,
    typer.Argument(metavar="[RECORD]", help="Open this record first; without it, the list.", show_default=False),
]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Listen there, for other machines, too. Needs --token.",
        show_default="127.0.0.1",
        rich_help_panel=WHERE,
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port", metavar="N", min=0, max=65535, help="Listen there.", show_default="a free one", rich_help_panel=WHERE
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TEXT", help="What visitors must know.", show_default="a new one", rich_help_panel=WHERE
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open a browser.", rich_help_panel=WHERE)]
Export = Annotated[
    Path | None,
    typer.Option(
        "--export",
        metavar="FILE",
        help="Write one self-contained HTML file instead: of RECORD, or of the newest one.",
        show_default=False,
        rich_help_panel=options.OUTPUT,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Makes the verb known."""
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
    open_browser: Open = False,
    export: Export = None,
    record: options.RecordParent = options.RECORDS,
    json: options.Json = False,
) -> None:
    """Shows records in a browser: dashboards, ops, kernels, time lines, results. Works offline."""
    session = Session.of(context, json=json)
    root, name = _place(chosen, record)
    if export is not None:
        _export(session, root, name, export, json=json)
        return
    from paceline.view import serve

    if host is not None and host != serve.HERE and token is None:
        raise UsageError(
            f"--host {host} lets other machines in, and nothing would keep strangers out.",
            advice=f"Choose a token of {serve.SHORTEST} characters or more: --host {host} --token …",
        )
    if token is not None and not re.fullmatch(rf"[A-Za-z0-9_.~-]{{{serve.SHORTEST},512}}", token):
        raise UsageError(
            f"--token: {serve.SHORTEST} letters, digits or _ . ~ - are needed, or more.",
            advice="Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
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
        console.print("Ctrl-C ends it.")

    if open_browser:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    try:
        serve.server(root, bound, token=token).run(sockets=[bound])
    except KeyboardInterrupt:
        pass  # which is how it is meant to end


def _place(chosen: Path | None, parent: Path) -> tuple[Path, str]:
    """The folder of records, and the name in it of the one that was asked for."""
    if chosen is None:
        if not parent.is_dir():
            raise UsageError(
                f"There is no folder of records at {parent}.",
                advice="Make a record: paceline run -n 2 train.py; or name the folder: --record DIR",
            )
        return parent, ""
    if not (chosen / "run.json").is_file():
        if chosen.is_dir() and any(chosen.glob("*/run.json")):
            return chosen, ""
        raise UsageError(
            f"{chosen} is no record: it has no run.json.",
            advice="A record is a folder such as paceline-runs/2026-11-15T10-22-31-train.",
        )
    chosen = chosen.resolve()
    if parent.is_dir() and chosen.is_relative_to(parent.resolve()):
        return parent, str(chosen.relative_to(parent.resolve()))
    return chosen.parent, chosen.name


def _export(session: Session, root: Path, name: str, target: Path, *, json: bool) -> None:
    from paceline.view.export import export

    session.record, size = export(root, name, target)
    if json:
        session.print_document({"export": str(target), "bytes": size})
    else:
        Console(highlight=False, markup=False).print(f"report: {target} ({size / 1e6:.1f} MB)", soft_wrap=True)
