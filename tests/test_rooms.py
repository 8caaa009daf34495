"""The rooms are imported in one direction, workers stay light, and the command line never imports torch."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from paceline import torch_private
from paceline.launch import Output, Zygote, launch
from paceline.settings import RunSettings

PACKAGE = Path(__file__).parents[1] / "src" / "paceline"
# Bottom up. A room imports only from itself and from rooms before it.
ROOMS = (
    *(
        "errors",
        "threads",
        "units",
        "imports",
        "options",
        "settings",
        "torch_private",
        "record",
        "charts",
        "topology",
        "wire",
        "comm",
        "script",
        "agreement",
        "spread",
        "strategies",
        "data",
    ),
    *("data", "converge", "checkpoint", "mods", "profile", "launch", "horovod", "tables", "advise", "trials", "doctor"),
    *("plan", "reports", "view", "cli"),
)
IN_WORKERS = (
    *(
        "wire",
        "comm",
        "script",
        "agreement",
        "spread",
        "strategies",
        "converge",
        "checkpoint",
        "record",
        "mods",
        "profile",
    ),
)
LIGHT = {"torch", "numpy", "msgspec", "zmq", "paceline", "__main__"}
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """The file's syntax tree, of which several tests look at every node."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide the room"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "paceline" else {node.module or ""}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(("paceline", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def imported_files(path: Path, modules: set[str]) -> set[str]:
    """The files that this one imports, also for types only and inside functions."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return found & modules - {module_of(path)}


def test_a_room_imports_only_from_rooms_before_it() -> None:
    wrong = []
    for path in FILES:
        room = room_of(path)
        if room.startswith("__"):
            continue  # the package's own face may look at every room
        assert room in ROOMS, f"{room} is not a room of the design"
        for name in imports(path):
            target = name.removeprefix("paceline.").split(".")[0] if name.startswith("paceline.") else ""
            if target in ROOMS and ROOMS.index(target) > ROOMS.index(room):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {target}, which lies above it")
    assert not wrong


def test_no_files_import_each_other_in_a_circle() -> None:
    modules = {module_of(path): path for path in FILES}
    graph = {module: imported_files(path, set(modules)) for module, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_no_parts_of_a_room_import_each_other_in_a_circle() -> None:
    """A part is a folder of the room, with all that lies in it, or a file beside the folders."""
    modules = {module_of(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for path in FILES:
        part = part_of(path)
        inside = {
            part_of(modules[name])
            for name in imported_files(path, set(modules))
            if room_of(modules[name]) == room_of(path)
        }
        graph.setdefault(part, set()).update(inside - {part})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def part_of(path: Path) -> str:
    return "/".join(path.relative_to(PACKAGE).parts[:2])


def test_threads_that_others_wait_for_are_started_in_one_place() -> None:
    """Those that are started elsewhere keep what they raise for who waits for them, or nobody waits for them."""
    own = {path.name for path in FILES if "threading.Thread(target" in path.read_text() and room_of(path) != "view"}
    assert own == {
        "threads.py",
        "background.py",
        "controller.py",
        "autotune.py",
        "limits.py",
        "sampling.py",
        "shown_names.py",
        "thread_pool.py",
        "tracking.py",
    }


def test_what_runs_in_a_worker_imports_little() -> None:
    heavy = {}
    for path in FILES:
        if room_of(path) not in IN_WORKERS:
            continue
        outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names) - LIGHT
        if path.stem.endswith(("kernels", "fused")):
            outside -= {"triton"}  # files that are imported only where there is a GPU, and torch has brought it
        if outside:
            heavy[path.name] = outside
    assert not heavy


def private_names(path: Path) -> set[str]:
    """Private names that a file takes from torch's modules."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            words = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found |= {f"{node.module}.{word}" for word in words if word.startswith("_") and not word.startswith("__")}
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            of_torch = isinstance(root, ast.Name) and root.id in ("torch", "nn", "F", "dist")
            if of_torch and not node.attr.startswith("_foreach_") and node.attr not in torch_private.OF_OTHERS:
                found.add(ast.unparse(node))
    return found


def test_private_names_of_torch_are_in_one_file() -> None:
    found = {path.name: private_names(path) for path in FILES if path.name != "torch_private.py"}
    assert not {name: names for name, names in found.items() if names}


def test_private_attributes_of_torchs_objects_are_listed() -> None:
    """So that the canary tries them."""
    every = [node for path in FILES if room_of(path) in (*IN_WORKERS, "data", "launch") for node in nodes(path)]
    own = {
        "_paceline",
        "_paceline_changes",
        "_paceline_dealt",
        "_paceline_factor",
        "_paceline_gathered",
        "_paceline_held",
        "_paceline_lent",
        "_paceline_whole",
    }
    for node in every:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            own.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    listed = {name for kind, names in vars(torch_private).items() if kind.startswith("OF_") for name in names}
    of_python = {"_getframe", "_current_frames", "_exit", "_config", "_shutdown", "_run_exitfuncs", "_file_openers"}
    of_python |= {"_TemporaryFileCloser", "_mkstemp_inner", "_version", "_registry"}  # a tensor's version is documented
    used = {node.attr for node in every if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    used = {name for name in used if not name.startswith(("__", "_foreach_"))}
    assert used - own - listed - of_python == set()


def test_a_worker_loads_nothing_of_the_command_line(zygote: Zygote, tmp_path: Path) -> None:
    heavy = "{'typer', 'rich', 'matplotlib', 'psutil', 'polars'}"
    script = tmp_path / "script.py"
    script.write_text(f"import sys; print(sorted({heavy} & set(sys.modules)), 'torch' in sys.modules)")
    said = []
    outcome = launch(RunSettings(script=str(script)), zygote=zygote, record=tmp_path / "record", on_event=said.append)
    assert outcome.exit_code == 0, outcome.message
    assert b"".join(event.data for event in said if isinstance(event, Output)) == b"[] True\n"


def test_the_command_line_never_imports_torch() -> None:
    code = "import sys, paceline, paceline.cli.app, paceline.trials.scale.series; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_tensors_of_our_own_are_on_the_host_whatever_the_scripts_default_device_is() -> None:
    makers = {"tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "as_tensor", "linspace"}
    wrong = [
        f"{path.name}:{call.lineno}"
        for path in FILES
        if room_of(path) in {"comm", "script", "agreement", "spread", "strategies", "mods", "converge"}
        if not {"measuring", "draws", "canary.py"} & set(path.parts)  # programs of ours; torch's functions
        for call in nodes(path)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {f"torch.{name}" for name in makers}
        if not any(keyword.arg in ("device", None) for keyword in call.keywords)
    ]
    assert not wrong


def test_only_settings_reads_the_environment() -> None:
    readers = [
        path.name
        for path in FILES
        if path.name != "settings.py"
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        if isinstance(node.value, ast.Name) and node.value.id == "os"
    ]
    # A worker is given its environment by the launcher, and puts it on.
    assert set(readers) <= {"process.py"}
