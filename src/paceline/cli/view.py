"""`paceline view`: shows all records in a browser, or writes one record into an HTML file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from urllib.parse import quote

from paceline.cli.options import JsonOptions, RecordOptions, no_records
from paceline.cli.session import Session
from paceline.cli.terminal import results
from paceline.cli.verb import alone, verb
from paceline.doctor.dependencies import need
from paceline.errors import UsageError
from paceline.options import OUTPUT, again, argument, option
from paceline.units import size
from paceline.view.records.limits import ViewLimits

app = alone()


@dataclass(frozen=True, kw_only=True)
class ViewOptions(JsonOptions):
    PANEL: ClassVar = "Server"
    chosen: tuple[Path, ...] = argument(
        "[RECORD | TRACE …]",
        "Record to open first; or traces from elsewhere, one file per rank: JSON of torch, Chrome or Perfetto "
        "(.json, .json.gz), SQLite of Nsight Systems. Default: the list of records.",
        default=(),
    )
    host: str | None = option(
        None,
        "Address to listen on. One that other machines can reach needs --token-file.",
        "ADDRESS",
        usual="127.0.0.1",
    )
    port: int = option(0, "Port to listen on.", "N", least=0, most=65535, usual="a free port")
    token: str | None = option(
        None,
        "Access token required to open the pages. Visible in the process list: prefer --token-file.",
        "TEXT",
        usual="a new token",
    )
    token_file: Path | None = option(None, "File with the access token. Only you may have read permission.", "FILE")
    open: bool = option(False, "Open the page in a browser.")
    export: Path | None = option(
        None, "Write RECORD, or the newest record, into one self-contained HTML file instead.", "FILE", panel=OUTPUT
    )
    record: Path = again(RecordOptions, "record")


@verb(
    app,
    "paceline view",
    "paceline view --open paceline-runs/2026-11-15T10-22-31-train",
    "paceline view trace.json.gz",
    "paceline view --export report.html",
)
def view(session: Session, asked: ViewOptions, limits: ViewLimits) -> None:
    need("view", "view")
    traces = list(asked.chosen) if any(path.is_file() for path in asked.chosen) else None
    with TemporaryDirectory(prefix="paceline-view-") if traces else nullcontext("") as folder:
        if traces:
            from paceline.view.records.adopted import adopt

            root, name = Path(folder), adopt(traces, Path(folder))
        else:
            root, name = _place(asked.chosen, asked.record)
        if asked.export is not None:
            _export(session, root, name, asked.export, limits)
        else:
            token = _token(asked.host, asked.token, asked.token_file)
            _serve(session, asked, root, name, limits, token, foreign=bool(traces))


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
    session: Session, asked: ViewOptions, root: Path, name: str, limits: ViewLimits, token: str, *, foreign: bool
) -> None:
    """Serves until Ctrl-C. `foreign`: `name` is made of traces that were taken elsewhere, and opens with them."""
    from paceline.view.server import serve
    from paceline.view.server.browser import open_browser

    bound = serve.listen(asked.host or serve.HERE, asked.port)
    page = "timeline" if foreign else "run"
    url = serve.address(bound, token, f"/{page}/{quote(name)}" if name else "/")
    if session.json:
        session.print_document({"url": url, "records": str(root)})
    else:
        console = results()
        console.print(f"trace:   {name}" if foreign else f"records: {root}", soft_wrap=True)
        console.print(f"open:    {url}", soft_wrap=True, style="bold")
        console.print("Ctrl-C stops the server.")
    try:
        with open_browser(url) if asked.open else nullcontext():
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


def _place(asked: Sequence[Path], parent: Path) -> tuple[Path, str]:
    """The folder of records, and the name in that folder of the chosen record; empty for the list."""
    if len(asked) > 1:
        raise UsageError(
            f"{len(asked)} records were given; one can be opened first.",
            advice="Name one record, or the folder of all: paceline view --record DIR. Several traces can be opened.",
        )
    if not asked:
        if not parent.is_dir():
            raise no_records(parent, "view")
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


def _export(session: Session, root: Path, name: str, target: Path, limits: ViewLimits) -> None:
    from paceline.view.server.export import export

    session.record, written = export(root, name, target, limits=limits)
    if session.json:
        session.print_document({"export": str(target), "bytes": written})
    else:
        results().print(f"report: {target} ({size(written)})", soft_wrap=True)
