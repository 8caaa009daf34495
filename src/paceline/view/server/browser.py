"""Opens a browser on the address without telling it to anybody else.

A browser is started with what it is to open in its argument list, which every account of the machine can read. So it is
given the address of a page in a private folder, and that page has the address with the token.
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
    """Starts a browser; gives the page that it was told to open, which is there as long as the block."""
    address = html.escape(f"{url}&{FROM_FILE}")
    with tempfile.TemporaryDirectory(prefix="paceline-view-", ignore_cleanup_errors=True) as folder:  # mode 0700
        page = Path(folder) / "open.html"
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(PAGE.format(url=address))
        # A browser may take its time, or never return.
        threading.Thread(target=browse, args=(page.as_uri(),), daemon=True).start()
        yield page
