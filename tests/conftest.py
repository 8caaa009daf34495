"""What all tests share: the pool of workers, and a look at what a test leaves behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from shm import shared_memory

if TYPE_CHECKING:
    from plain import PlainPython
    from pool import Pools
    from typist import Typist

    from paceline.launch import Zygote

# Read when torch is loaded, here and in every process that a test starts: a thread that waits for one without a core
# would keep its own core busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Processes that a test starts run in folders of their own.
if typed := os.environ.get("PYTHONPATH"):
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in typed.split(os.pathsep))

# A job that a shell has put into the background ignores Ctrl-C, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Importing tests and torch makes a million objects and almost no garbage: see `pytest_collection_finish`.
gc.disable()

WITH_WORKERS = ("comm", "script", "strategies", "horovod")
# What stays together, so that each pool, zygote and browser is made once: rooms, or files that need nobody else's.
TOGETHER = {
    "tests/acceptance/test_same_numbers.py": "corpus",
    **dict.fromkeys(("tests/acceptance/", "tests/checkpoint/test_resumed_runs.py"), "acceptance"),
    "tests/script/": "script",
    "tests/strategies/": "strategies",
    **dict.fromkeys(("tests/comm/", "tests/horovod/"), "comm"),
    **dict.fromkeys((f"tests/trials/test_{name}.py" for name in ("bench", "scale_causes", "sweep_runs")), "launch"),
    **dict.fromkeys(("tests/launch/", "tests/advise/test_slow_worker.py", "tests/test_rooms.py"), "launch"),
    "tests/view/": "view",
}
# Files of a room that use neither the room's zygote nor its typist: they begin as soon as a core is free.
APART = tuple(f"tests/acceptance/test_{name}.py" for name in ("second_account", "prompts", "demo"))
# What takes long, longest first: where one of them began last, the other cores would wait for it.
LONG = (
    *("acceptance", "view", "strategies", "script", "launch", "comm", "corpus", *APART),
    *("tests/test_contributing.py", "tests/converge/test_ghost.py"),
)

# The same examples on every machine; a busy machine is slow, which is no fault. `make test-all` tries many more.
for name, examples in (("default", 10), ("large", 100)):
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Of several test processes each begins to collect in another folder: it compiles a part of a fresh clone's files,
    and finds the rest compiled by the others."""
    number, here = os.environ.get("PYTEST_XDIST_WORKER", ""), Path(__file__).parent
    if number and config.option.markexpr != "gpu" and [Path(arg).resolve() for arg in config.args] == [here]:
        homes = sorted(str(path) for path in here.iterdir() if path.is_dir() or path.match("test_*.py"))
        begin = len(homes) * int(number.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        config.args[:] = homes[begin:] + homes[:begin]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m gpu` imports no file without such a test: a machine with a GPU may lack what the file needs."""
    if config.option.markexpr != "gpu" or collection_path.suffix not in ("", ".py"):
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return None if any("mark.gpu" in file.read_text() for file in files) else True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("there is no GPU")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With `-m gpu`, a line for each file."""
    if config.option.markexpr == "gpu":
        found: dict[str, Counter[str]] = {}
        for outcome in ("passed", "failed", "error", "skipped"):
            for report in terminalreporter.stats.get(outcome, ()):
                area = Path(report.nodeid.partition("::")[0]).stem.removeprefix("test_").removesuffix("_gpu")
                found.setdefault(area.replace("_", " "), Counter())[outcome] += 1
        for area, outcomes in sorted(found.items()):
            terminalreporter.write_line(" ".join([area, *(f"{count} {what}" for what, count in outcomes.items())]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests are spread over processes (`-n`): those of a room on workers stay in one process, so that each pool
    and zygote is made once. All others run beside them, file by file. With `-m gpu` each process has a zygote of its
    own, and takes what is left."""
    if config.option.markexpr == "gpu":
        return None

    from xdist.scheduler import LoadScopeScheduling

    class ByRoom(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid)

    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return ByRoom(config, log)


def _together(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if file in APART:
        return file
    return next((name for start, name in TOGETHER.items() if file.startswith(start)), file)


def _place(item: pytest.Item) -> tuple[int, str]:
    name = _together(item.nodeid)
    return LONG.index(name) if name in LONG else len(LONG), str(item.path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first. Of a test that is `crossed` with an axis (the number of workers), the default run
    takes every case once, with the axis's values in turn; `make test-all` takes all."""
    items.sort(key=_place)
    crossed: dict[tuple[Any, str], list[tuple[Any, str, str]]] = {}
    for item in items:
        if (mark := item.get_closest_marker("crossed")) is not None and item.get_closest_marker("gpu") is None:
            others = dict(item.callspec.params)  # type: ignore[attr-defined]
            value = others.pop(mark.args[0])
            crossed.setdefault((item.path, item.originalname), []).append((item, repr(value), repr(others)))  # type: ignore[attr-defined]
    for found in crossed.values():
        values, cases = (list(dict.fromkeys(column)) for column in list(zip(*found, strict=True))[1:])
        for item, value, case in found:
            if values.index(value) != cases.index(case) % len(values):
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Tests' own numbers are computed in this process, by several threads. What was imported stays: a thousand tests
    collect garbage, or fork processes that do, and need not walk through it each time."""
    gc.collect()
    gc.freeze()
    gc.enable()
    if "torch" in sys.modules:
        from paceline.launch.worker.process import settle_mathematics

        settle_mathematics()
        if "PYTEST_XDIST_WORKER" in os.environ:  # several test processes share the cores
            sys.modules["torch"].set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "run the whole corpus under this strategy, on 2 workers or as many as it asks for"
    parser.addoption("--corpus-under", metavar="STRATEGY", help=told)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pools]:
    """`pool(n).run(function, *args)`: the function on n connected workers."""
    from pool import Pools  # imports torch

    pools = Pools()
    yield pools
    pools.close()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One for all scripts that are really launched: importing torch costs more than most of them."""
    from paceline.launch import Zygote

    with Zygote.start() as it:
        yield it


@pytest.fixture(scope="session")
def typist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    """`typist.type(folder, verb, …)`: a command line, with real workers."""
    from typist import Typist

    it = Typist(tmp_path_factory.mktemp("typed"))
    yield it
    it.close()


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainPython]:
    """`plain.run(folder, script, …)`: a script in plain Python, as a fork of a process that has imported torch."""
    from plain import PlainPython

    it = PlainPython(tmp_path_factory.mktemp("plain"))
    yield it
    it.close()


@pytest.fixture(autouse=True)
def no_worker_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that used workers there is no process of its own and no shared memory left."""
    if request.path.relative_to(Path(__file__).parent).parts[0] not in WITH_WORKERS:
        yield
        return
    pools: Pools = request.getfixturevalue("pool")
    before = _children(), shared_memory()
    yield
    deadline = time.monotonic() + 60
    while True:
        left = _children() - before[0] - pools.pids, shared_memory() - before[1]
        if not any(left) or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert not any(left), f"left behind: processes {left[0]}, shared memory {left[1]}"


def _children() -> set[int]:
    # Not by psutil, which reads all of /proc: this is asked a thousand times.
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # a thread that has ended just now
    return found
