"""Scripts that are given as text, and a check that each test leaves nothing behind."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from launched import Launched, Play
from shm import shared_memory

from paceline.launch import Event, Zygote, launch
from paceline.settings import RunSettings

SERVERS = ("verb_server.py", "plain_python.py", "playwright")  # a browser starts processes when it likes


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process below us but the zygote, no shared memory, no open descriptor, once the test is over."""
    if "zygote" in request.fixturenames:
        request.getfixturevalue("zygote")
    before = left_overs()
    yield
    deadline = time.monotonic() + 60
    while (left := more_than(before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, [command(name) for name in left]


def command(name: str) -> str:
    """A left process in words."""
    pid = name.removeprefix("process ")
    path = Path(f"/proc/{pid}/cmdline")
    return f"{name}: {path.read_text()}" if pid.isdigit() and path.exists() else name


def left_overs() -> tuple[set[str], int]:
    """Names of processes and shared memory, and the number of open descriptors. The servers of the test session
    (`plain`, `typist`, the browser) and what they start are not this test's."""
    found, below = set[str](), psutil.Process().children()
    while below:
        child = below.pop()
        try:
            if not any(name in " ".join(child.cmdline()) for name in SERVERS):
                found.add(f"process {child.pid}")
                below += child.children()
        except psutil.Error:
            pass  # it has ended
    found |= {f"/dev/shm/{name}" for name in shared_memory()}
    return found, len(os.listdir("/proc/self/fd"))


def more_than(before: tuple[set[str], int]) -> set[str]:
    """Fewer descriptors than before are no fault: what an earlier test dropped may be collected in this one."""
    found, descriptors = left_overs()
    more = {f"{descriptors - before[1]} open descriptors"} if descriptors > before[1] else set()
    return found - before[0] | more


@pytest.fixture
def play(zygote: Zygote, tmp_path: Path) -> Play:
    """Launches a script that is given as text."""

    def play(
        text: str,
        *,
        workers: int = 2,
        on_event: Callable[[Launched, Event], None] | None = None,
        oversubscribe: bool = False,
        arguments: tuple[str, ...] = (),
        limit: float | None = None,
        **settings: object,
    ) -> Launched:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text))
        launched = Launched(tmp_path / "record")

        def tell(event: Event) -> None:
            launched.events.append(event)
            if on_event is not None:
                on_event(launched, event)

        run = RunSettings(script=str(script), workers=workers, arguments=arguments, **settings)  # type: ignore[arg-type]
        launched.outcome = launch(
            run, zygote=zygote, record=launched.record, on_event=tell, oversubscribe=oversubscribe, limit=limit
        )
        return launched

    return play
