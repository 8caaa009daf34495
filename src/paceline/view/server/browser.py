"""Opens a browser without showing the token to other users of the machine.

Every user can read the argument list of a process. So the browser's argument is a file in a private folder, and that
file redirects to the address with the token.
"""

from __future__ import annotations

import html
import os
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.view.server.auth import FROM_FILE

PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>paceline view</title>
<p><a href="{url}">Open paceline view</a></p>
"""


@contextmanager
def open_browser(url: str, browse: Callable[[str], object] = webbrowser.open) -> Iterator[Path]:
    """Starts a browser. Yields the path of the redirecting page, which exists until the block ends."""
    address = html.escape(f"{url}&{FROM_FILE}")
    with tempfile.TemporaryDirectory(prefix="paceline-view-", ignore_cleanup_errors=True) as folder:  # mode 0700
        page = Path(folder) / "open.html"
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(PAGE.format(url=address))
        # In a thread, because the call may return late or never.
        threading.Thread(target=browse, args=(page.as_uri(),), daemon=True).start()
        yield page
