"""Serves the app until it is interrupted."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import uvicorn

from paceline.errors import UsageError
from paceline.view.server.app import make_app
from paceline.view.server.limits import ViewLimits

HERE = "127.0.0.1"
SHORTEST = 16  # characters of a token that is to keep strangers out


def new_token() -> str:
    return secrets.token_urlsafe(24)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, so that its address can be told before anybody is served. UsageError where it is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(128)  # whoever is told the address at once can ask at once
    except (OSError, OverflowError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise UsageError(
            f"--host {host} --port {port}: cannot listen there: {reason}.",
            advice="Leave --port out to get a free one.",
        ) from error
    return bound


def address(bound: socket.socket, token: str, path: str = "/") -> str:
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}?token={token}"


def server(root: Path, bound: socket.socket, *, token: str, limits: ViewLimits | None = None) -> uvicorn.Server:
    """Its `run(sockets=[bound])` serves until it is interrupted. Where only this machine can ask, it must ask for this
    machine."""
    local = bound.getsockname()[0] == HERE
    app = make_app(root, token=token, hosts=frozenset({HERE, "localhost"}) if local else None, limits=limits)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,  # pages that follow a run never end by themselves
    )
    return uvicorn.Server(config)
