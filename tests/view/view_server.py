"""The app over a folder, in a thread of this process, as `paceline view` serves it."""

from __future__ import annotations

import threading
from pathlib import Path

from view_records import TOKEN

from paceline.view.server import serve


class Served:
    """The app over a folder, in a thread of this process, as `paceline view` serves it."""

    def __init__(self, root: Path) -> None:
        self._bound = serve.listen(serve.HERE, 0)
        self._server = serve.server(root, self._bound, token=TOKEN)
        self.first = serve.address(self._bound, TOKEN)
        self.base = self.first.partition("/?")[0]
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._bound]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
