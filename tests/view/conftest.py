"""Records for the pages, the app over them, and one browser for all tests that need one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from view_browser import browser, context, only_page, served, visit  # noqa: F401 (fixtures)
from view_records import TOKEN, make_all


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read by all tests, changed by none."""
    return make_all(tmp_path_factory.mktemp("view") / "paceline-runs")


@pytest.fixture(scope="session")
def client_of() -> Callable[..., object]:
    """A client of the app over a folder, with the token."""
    from starlette.testclient import TestClient

    from paceline.view.records.limits import ViewLimits
    from paceline.view.server.app import make_app

    def make(root: Path, *, token: str = TOKEN, limits: ViewLimits | None = None) -> TestClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        app = make_app(root, token=TOKEN, hosts=frozenset({"127.0.0.1", "localhost"}), limits=limits)
        return TestClient(app, base_url="http://127.0.0.1", headers=headers, raise_server_exceptions=False)

    return make


@pytest.fixture(scope="session")
def client(records, client_of) -> Iterator[object]:
    with client_of(records) as made:
        yield made


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser; installed where that can be done, else the test is skipped."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "chromium"]):
            subprocess.run(command, capture_output=True, timeout=400, check=False)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("no chromium here, and apt cannot install it")
    return found
