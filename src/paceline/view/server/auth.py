"""Access control: every request needs the token that `paceline view` printed.

The printed address carries the token for the first request; after that a cookie carries the token. Programs send the
token as a bearer. A browser does not send a strict cookie while it follows a link from another site or from a file, so
the first response to such a request is a page of ours that redirects. The headers of every response forbid the browser
to run scripts other than our own files, to send the address to other sites, and to show the page in a frame.
"""

from __future__ import annotations

import hmac
from html import escape
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FROM_FILE = "from=file"  # the last query parameter of an address that a local file redirects to
CHANGES, OURS = "/labels/", "X-Paceline"  # addresses that change a record, and the header that such a request needs
REFUSED = (
    "This address needs the token that `paceline view` printed.\n"
    "Open the full address, with ?token=… at the end, or send the header Authorization: Bearer TOKEN.\n"
)


class Gate:
    """ASGI middleware: passes on requests that carry the token, and adds the headers to every response."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str] | None = None) -> None:
        self._app, self._token, self._hosts = app, token.encode(), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # the app has no web sockets

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._look(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _look(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._hosts is not None and _name(headers.get("host", "")) not in self._hosts:
            # DNS rebinding: a foreign host name resolves to this server.
            return PlainTextResponse(
                "The host name in this address is not ours. Open the address that `paceline view` printed.\n",
                status_code=421,
            )
        changes = scope["method"] == "POST" and scope["path"].startswith(CHANGES)
        if not changes and scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("paceline view answers GET and HEAD requests only.\n", status_code=405)
        if changes and OURS not in headers:
            # A page of another site cannot send this header: a browser would first ask with OPTIONS, which is refused.
            return PlainTextResponse(f"A change needs the header {OURS}.\n", status_code=403)
        cookie = f"paceline_{_port(scope)}"
        if self._is_token(_cookie(headers, cookie)) or self._is_token(_bearer(headers)):
            return None
        if changes:
            return PlainTextResponse(REFUSED, status_code=401, headers={"WWW-Authenticate": "Bearer"})
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not self._is_token(next((value for name, value in query if name == "token"), "")):
            return PlainTextResponse(REFUSED, status_code=401, headers={"WWW-Authenticate": "Bearer"})
        if "text/html" not in headers.get("accept", ""):
            return None
        # Remove the token from the address bar, so that no screenshot or bookmark contains the token.
        kept = [(name, value) for name, value in query if name != "token"]
        from_file = urlencode(kept[-1:]) == FROM_FILE
        rest = urlencode(kept[:-1] if from_file else kept)
        path = "/" + scope["raw_path"].decode("latin-1").partition("?")[0].lstrip("/\\")
        target = path + (f"?{rest}" if rest else "")
        moved: Response = RedirectResponse(target, status_code=303)
        if from_file:
            moved = HTMLResponse(
                f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(target)}">'
                f'<title>paceline view</title><a href="{escape(target)}">Continue</a>'
            )
        moved.set_cookie(cookie, self._token.decode(), httponly=True, samesite="strict", path="/")
        return moved

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogatepass"), self._token)


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _bearer(headers: Headers) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _port(scope: Scope) -> int:
    # Browsers store cookies by host, not by port: two servers on one host must not share a cookie.
    server = scope.get("server")
    return int(server[1] or 0) if server else 0


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
