"""Serves the web app over HTTP until the process is interrupted."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import uvicorn

from paceline.errors import UsageError
from paceline.view.records.limits import ViewLimits
from paceline.view.server.app import make_app

HERE = "127.0.0.1"
SHORTEST = 16  # characters of the shortest token that a user may choose


def new_token() -> str:
    return secrets.token_urlsafe(24)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that the address is known before the server runs. Raises UsageError if it is in use."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(128)  # requests may arrive before the server runs
    except (OSError, OverflowError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise UsageError(
            f"--host {host} --port {port}: cannot listen on this address: {reason}.",
            advice="Leave --port out to get a free port.",
        ) from error
    return bound


def address(bound: socket.socket, token: str, path: str = "/") -> str:
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}?token={token}"


def server(
    root: Path, bound: socket.socket, *, token: str, limits: ViewLimits | None = None, ahead: str = ""
) -> uvicorn.Server:
    """A server whose `run(sockets=[bound])` serves until it is interrupted. On a loopback address, it accepts only
    requests that name this machine as their host. `ahead`: the record whose traces are read before a page asks."""
    local = bound.getsockname()[0] == HERE
    hosts = frozenset({HERE, "localhost"}) if local else None
    app = make_app(root, token=token, hosts=hosts, limits=limits, ahead=ahead)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,  # seconds; connections that follow a run never end by themselves
    )
    return uvicorn.Server(config)
