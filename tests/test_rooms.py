"""The rooms are imported in one direction, workers stay light, and the command line never imports torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "paceline"
# Bottom up. A room imports only from itself and from rooms before it.
ROOMS = (
    *("errors", "settings", "record", "topology", "comm", "script", "strategies", "data", "converge", "checkpoint"),
    *("mods", "profile", "launch", "horovod", "tables", "advise", "trials", "plan", "view", "cli"),
)
IN_WORKERS = ("comm", "script", "strategies", "converge", "record", "mods", "profile")
LIGHT = {"torch", "numpy", "msgspec", "zmq", "paceline", "__main__"}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide the room"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "paceline" else {node.module or ""}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_rooms_before_it(path: Path) -> None:
    room = room_of(path)
    if room.startswith("__"):
        return  # the package's own face may look at every room
    assert room in ROOMS, f"{room} is not a room of the design"
    for name in imports(path):
        if name.startswith("paceline.") and (target := name.split(".")[1]) in ROOMS:
            assert ROOMS.index(target) <= ROOMS.index(room), f"{room} imports {target}, which lies above it"


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in IN_WORKERS], ids=lambda path: path.name)
def test_what_runs_in_a_worker_imports_little(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    if path.stem.endswith(("_kernels", "_fused")):
        outside -= {"triton"}  # files that are imported only where there is a GPU, and torch has brought it
    assert outside <= LIGHT, f"{path.name} imports {outside - LIGHT} inside a worker"


def test_a_worker_loads_nothing_of_the_command_line() -> None:
    heavy = "{'typer', 'rich', 'matplotlib', 'psutil', 'polars', 'plotly'}"
    code = f"import sys, paceline.launch.worker.worker_main; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_never_imports_torch() -> None:
    code = "import sys, paceline, paceline.cli.app, paceline.trials.scale.series; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_holds_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_only_settings_reads_the_environment() -> None:
    readers = [
        path.name
        for path in FILES
        if path.name != "settings.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        if isinstance(node.value, ast.Name) and node.value.id == "os"
    ]
    # A worker is given its environment by the launcher, and puts it on.
    assert set(readers) <= {"worker.py"}
