"""One voice: a rank that does not speak sees its own writes, and the real files stay as they are.

Each scenario is run twice from the same files: in plain Python, and in a process with a `Voice`. What the script saw
must be the same; the real folder must be untouched.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import logging
import os
import pickle
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pool import Pool, alone
from silent import check, in_silence, populate, run_there, the_run_begins
from staged import staged

from paceline.comm.group import Group
from paceline.script.output.rank0 import Voice

# -- scenarios ---------------------------------------------------------------------------------------------------------


SCENARIOS: list[Callable[[], Any]] = []


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS.append(function)
    return function


def text_of(name: str) -> str:
    with open(name) as file:
        return file.read()


@scenario
def write_and_read() -> Any:
    with open("new.txt", "w") as file:
        file.write("hello")
    return text_of("new.txt"), os.path.exists("new.txt"), os.path.getsize("new.txt"), os.path.isfile("new.txt")


@scenario
def write_over() -> Any:
    with open("old.txt", "w") as file:
        file.write("new")
    return text_of("old.txt")


@scenario
def append() -> Any:
    for text in ("1", "2"):
        with open("old.txt", "a") as file:
            file.write(text)
    with open("fresh.txt", "a") as file:
        file.write("x")
    return text_of("old.txt"), text_of("fresh.txt")


@scenario
def exclusive() -> Any:
    with open("new.txt", "x") as file:
        file.write("once")
    try:
        Path("new.txt").open("x").close()
    except FileExistsError:
        return text_of("new.txt")


@scenario
def exclusive_over_real_things() -> Any:
    seen = []
    for make in (
        lambda: Path("old.txt").open("x").close(),
        lambda: os.close(os.open("old.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        lambda: os.mkdir("data"),
        lambda: os.mkdir("old.txt"),
        lambda: os.symlink("data/a.txt", "old.txt"),
        lambda: os.link("data/a.txt", "old.txt"),
    ):
        try:
            seen.append(make())
        except FileExistsError:
            seen.append("it is there")
    return seen


@scenario
def update_in_place() -> Any:
    with open("old.txt", "r+") as file:
        file.seek(1)
        file.write("X")
    with open("old.txt", "rb+") as file:
        file.seek(0, 2)
        file.write(b"!")
    with open("new.txt", "w+") as file:
        file.write("abc")
        file.seek(1)
        return text_of("old.txt"), file.read()


@scenario
def update_what_is_not_there() -> Any:
    try:
        Path("nothing.txt").open("r+").close()
    except FileNotFoundError:
        return os.path.exists("nothing.txt")


@scenario
def write_into_a_folder_that_is_not_there() -> Any:
    try:
        Path("nowhere/new.txt").open("w").close()
    except FileNotFoundError:
        return os.path.exists("nowhere")


@scenario
def read_what_is_not_there() -> Any:
    seen = []
    for action in (open, os.stat, os.listdir, os.readlink, os.scandir):
        try:
            action("nothing")
        except FileNotFoundError as error:
            seen.append((error.errno, error.filename))
    return seen


@scenario
def read_real_files() -> Any:
    return text_of("old.txt"), sorted(os.listdir("data")), os.path.isdir("data/sub"), Path("data/sub/b.txt").read_text()


@scenario
def folders() -> Any:
    os.mkdir("out")
    os.makedirs("deep/er/est")
    os.makedirs("deep/er/est", exist_ok=True)
    os.makedirs("data", exist_ok=True)
    os.makedirs("data/more/still", exist_ok=True)
    try:
        os.makedirs("deep/er")
    except FileExistsError:
        pass
    with open("deep/er/est/f.txt", "w") as file:
        file.write("f")
    with open("data/more/g.txt", "w") as file:
        file.write("g")
    return sorted(glob.glob("**", recursive=True)), os.path.isdir("out"), sorted(os.listdir("data"))


@scenario
def remove_then_look() -> Any:
    with open("new.txt", "w") as file:
        file.write("x")
    os.remove("new.txt")
    os.unlink("old.txt")
    seen = [os.path.exists("new.txt"), os.path.exists("old.txt"), sorted(os.listdir(".")), glob.glob("*.txt")]
    try:
        text_of("old.txt")
    except FileNotFoundError:
        seen.append("gone")
    try:
        os.remove("old.txt")
    except FileNotFoundError:
        seen.append("gone already")
    seen.append(os.access("old.txt", os.R_OK))
    with open("old.txt", "a") as file:
        file.write("again")
    return [*seen, text_of("old.txt"), os.access("old.txt", os.R_OK)]


@scenario
def remove_folders() -> Any:
    os.mkdir("empty")
    os.rmdir("empty")
    seen = [os.path.exists("empty")]
    try:
        os.rmdir("data")
    except OSError as error:
        seen.append(error.errno)
    os.remove("data/sub/b.txt")
    os.rmdir("data/sub")
    os.mkdir("data/sub")
    return [*seen, os.listdir("data/sub"), sorted(os.listdir("data"))]


@scenario
def rename() -> Any:
    with open("new.txt", "w") as file:
        file.write("new")
    os.rename("new.txt", "renamed.txt")
    os.rename("old.txt", "older.txt")
    os.replace("older.txt", "renamed.txt")
    return text_of("renamed.txt"), sorted(os.listdir(".")), os.path.exists("old.txt")


@scenario
def rename_a_folder() -> Any:
    os.mkdir("out")
    with open("out/f.txt", "w") as file:
        file.write("f")
    os.rename("out", "results")
    return text_of("results/f.txt"), os.path.exists("out"), sorted(os.listdir("."))


@scenario
def rename_a_real_folder() -> Any:
    os.rename("data", "moved")
    return text_of("moved/sub/b.txt"), os.path.exists("data"), sorted(os.listdir("moved"))


@scenario
def atomic_save() -> Any:
    """As careful people write a checkpoint: to a temporary file beside it, then in its place."""
    for value in (1, 2):
        descriptor, name = tempfile.mkstemp(dir=".", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(pickle.dumps(value))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, "checkpoint.pkl")
    with open("checkpoint.pkl", "rb") as file:
        return pickle.load(file), sorted(os.listdir("."))


@scenario
def named_temporary_file() -> Any:
    with tempfile.NamedTemporaryFile("w", dir="data", delete=False) as file:
        file.write("t")
    os.replace(file.name, "data/t.txt")
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("u")
        file.seek(0)
        return text_of("data/t.txt"), sorted(os.listdir("data")), file.read()


@scenario
def temporary_file_for_a_child() -> Any:
    """As compilers are called: Triton's PTX assembler."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx", delete=False) as file:
        file.write("u")
    seen = subprocess.run(["cat", file.name], capture_output=True, text=True, check=True).stdout
    os.remove(file.name)
    return seen, os.path.exists(file.name)


@scenario
def temporary_folder() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.txt"
        path.write_text("x")
        seen = path.read_text(), os.listdir(folder)
    return seen, os.path.exists(folder)


@scenario
def move_out_of_a_temporary_folder() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.txt").write_text("a")
        Path(folder, "b.txt").write_text("b")
        os.replace(os.path.join(folder, "a.txt"), "a.txt")
        shutil.move(os.path.join(folder, "b.txt"), "data")
        os.rename("old.txt", os.path.join(folder, "old.txt"))
        seen = Path(folder, "old.txt").read_text()
    return seen, text_of("a.txt"), text_of("data/b.txt"), os.path.exists("old.txt"), sorted(os.listdir("."))


@scenario
def with_an_archive() -> Any:
    with tarfile.open("all.tar", "w") as archive:
        archive.add("data")
    with tarfile.open("all.tar") as archive:
        return sorted(archive.getnames())


@scenario
def copy_and_move() -> Any:
    shutil.copy("old.txt", "copy.txt")
    shutil.copy2("old.txt", "data/copy.txt")
    shutil.copyfile("copy.txt", "copy2.txt")
    shutil.move("copy2.txt", "data")
    shutil.move("old.txt", "moved.txt")
    shutil.copytree("data", "tree")
    return sorted(glob.glob("**", recursive=True)), text_of("moved.txt"), text_of("tree/sub/b.txt")


@scenario
def remove_trees() -> Any:
    shutil.rmtree("data")
    seen = [os.path.exists("data"), os.path.exists("data/sub/b.txt"), sorted(os.listdir("."))]
    os.makedirs("data/new")
    seen += [sorted(os.listdir("data")), os.path.exists("data/a.txt"), os.path.exists("data/sub")]
    with open("data/a.txt", "w") as file:
        file.write("A")
    os.mkdir("mine")
    shutil.rmtree("mine")
    shutil.rmtree("nothing", ignore_errors=True)
    try:
        shutil.rmtree("mine")
    except FileNotFoundError:
        seen.append("not there")
    return [*seen, text_of("data/a.txt"), sorted(glob.glob("**", recursive=True))]


@scenario
def walk() -> Any:
    os.makedirs("data/new")
    Path("data/new/c.txt").write_text("c")
    os.remove("data/a.txt")
    return [(folder, sorted(names), sorted(files)) for folder, names, files in sorted(os.walk("."))]


@scenario
def with_pathlib() -> Any:
    path = Path("notes") / "n.txt"
    path.parent.mkdir()
    path.parent.mkdir(exist_ok=True)
    path.write_text("n")
    path.with_suffix(".bin").write_bytes(b"123")
    Path("touched").touch()
    Path("old.txt").unlink()
    Path("nothing").unlink(missing_ok=True)
    path.rename(path.with_name("m.txt"))
    seen = [sorted(p.name for p in Path("notes").iterdir()), Path("notes/m.txt").read_text()]
    seen += [Path("old.txt").exists(), Path("touched").stat().st_size, sorted(str(p) for p in Path().glob("*"))]
    return [*seen, Path("notes/m.txt").resolve().relative_to(Path.cwd()).as_posix(), Path("notes").is_dir()]


@scenario
def with_torch() -> Any:
    torch.save({"a": torch.ones(2)}, "model.pt")
    torch.save([1, 2], Path("data") / "list.pt")
    with open("open.pt", "wb") as file:
        torch.save(3, file)
    memory = io.BytesIO()
    torch.save(4, memory)
    try:
        torch.save(1, "nowhere/model.pt")
        refused = False
    except (RuntimeError, OSError):
        refused = True
    seen = torch.load("model.pt")["a"].tolist(), torch.load(Path("data/list.pt")), torch.load("open.pt")
    return seen, os.path.exists("model.pt"), refused, len(memory.getvalue()) > 0


@scenario
def with_numpy() -> Any:
    np.save("array.npy", np.arange(3))
    np.savez("arrays.npz", x=np.ones(2))
    np.savetxt("array.txt", np.eye(2))
    with np.load("arrays.npz") as arrays:
        return np.load("array.npy").tolist(), arrays["x"].tolist(), np.loadtxt("array.txt").tolist()


@scenario
def with_other_writers() -> Any:
    with open("d.json", "w") as file:
        json.dump({"a": 1}, file)
    with open("d.csv", "w", newline="") as file:
        csv.writer(file).writerow([1, "x"])
    with gzip.open("d.gz", "wt") as file:
        file.write("zipped")
    with zipfile.ZipFile("d.zip", "w") as archive:
        archive.writestr("inside.txt", "inside")
    logger = logging.getLogger("scenario")
    handler = logging.FileHandler("d.log")
    logger.addHandler(handler)
    logger.warning("logged")
    logger.removeHandler(handler)
    handler.close()
    with gzip.open("d.gz", "rt") as file, zipfile.ZipFile("d.zip") as archive:
        return text_of("d.json"), text_of("d.csv"), file.read(), archive.namelist(), text_of("d.log")


@scenario
def with_a_database() -> Any:
    """Metrics in SQLite, which opens its file past Python."""
    for _ in range(2):
        with closing(sqlite3.connect("runs.db")) as database, database:
            database.execute("create table if not exists losses (value real)")
            database.execute("insert into losses values (0.5)")
    with closing(sqlite3.connect("runs.db")) as database, closing(sqlite3.connect(":memory:")) as memory:
        memory.execute("create table x (y)")
        return database.execute("select count(*), sum(value) from losses").fetchall(), os.path.exists("runs.db")


@scenario
def link_to_the_latest() -> Any:
    """As many training scripts name their last checkpoint."""
    for name in ("1.pt", "2.pt"):
        with open(name, "w") as file:
            file.write(name)
        if os.path.islink("latest.pt"):
            os.remove("latest.pt")
        os.symlink(name, "latest.pt")
    Path("also.pt").symlink_to("1.pt")
    return text_of("latest.pt"), os.readlink("latest.pt"), text_of("also.pt"), sorted(os.listdir("."))


@scenario
def link_to_real_files() -> Any:
    os.symlink("old.txt", "link.txt")
    os.symlink(os.path.abspath("data/a.txt"), "far.txt")
    os.symlink("nothing", "dangling")
    with open("link.txt", "a") as file:
        file.write("er")
    seen = [text_of("link.txt"), text_of("old.txt"), text_of("far.txt"), os.path.exists("dangling")]
    seen += [os.path.lexists("dangling"), os.path.islink("link.txt"), os.stat("far.txt").st_size]
    os.remove("link.txt")
    return [*seen, text_of("old.txt"), os.path.lexists("link.txt"), os.path.realpath("far.txt")[-10:]]


@scenario
def hard_link() -> Any:
    with open("best.txt", "w") as file:
        file.write("best")
    os.link("best.txt", "linked.txt")
    return text_of("linked.txt")


@scenario
def cut_short() -> Any:
    with open("new.txt", "w") as file:
        file.write("12345")
    os.truncate("new.txt", 2)
    os.truncate("old.txt", 1)
    return text_of("new.txt"), text_of("old.txt")


@scenario
def low_level() -> Any:
    descriptor = os.open("raw.bin", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, b"raw")
    os.close(descriptor)
    descriptor = os.open("raw.bin", os.O_RDWR)
    os.lseek(descriptor, 1, os.SEEK_SET)
    os.write(descriptor, b"A")
    os.close(descriptor)
    descriptor = os.open("old.txt", os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b"er")
    os.close(descriptor)
    try:
        os.open("old.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        refused = False
    except FileExistsError:
        refused = True
    os.remove("data/a.txt")
    try:
        os.open("data/a.txt", os.O_RDONLY)
        gone = False
    except FileNotFoundError:
        gone = True
    return text_of("raw.bin"), text_of("old.txt"), refused, gone


@scenario
def permissions_and_times() -> Any:
    with open("new.txt", "w") as file:
        file.write("x")
    os.chmod("new.txt", 0o640)
    os.utime("new.txt", (1000, 2000))
    os.chmod("old.txt", 0o600)
    os.utime("old.txt", (1, 2))
    return os.stat("new.txt").st_mode & 0o777, os.path.getmtime("new.txt"), os.path.getmtime("old.txt")


@scenario
def bytes_and_descriptors() -> Any:
    with open(b"new.txt", "w") as file:
        file.write("x")
        file.flush()
        size = os.stat(file.fileno()).st_size
    with open(os.open("new.txt", os.O_RDONLY)) as file:
        text = file.read()
    return size, text, os.path.exists(b"new.txt"), sorted(os.listdir(b"data"))


@scenario
def list_with_scandir() -> Any:
    Path("data/new.txt").write_text("n")
    with os.scandir("data") as entries:
        seen = sorted((e.name, e.is_file(), e.is_dir(), e.path, e.stat().st_size) for e in entries if e.is_file())
    return seen, sorted(e.name for e in os.scandir())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_script_sees_its_own_writes_and_the_real_files_stay(
    silent: tuple[Pool, Path], tmp_path: Path, scenario: Callable[[], Any]
) -> None:
    check(silent, tmp_path, scenario)


# -- any sequence of actions -------------------------------------------------------------------------------------------

MADE, THERE = ["new", "new/f.txt", "new/deep", "x.txt", "y.txt"], ["data/a.txt", "data/sub/b.txt", "old.txt"]
FOLDERS = ["data", "data/sub", "new", "new/deep", "."]
names = st.sampled_from(MADE + THERE)
actions = st.one_of(
    st.tuples(st.just("write"), names),
    st.tuples(st.just("append"), names),
    st.tuples(st.just("read"), names),
    st.tuples(st.just("exists"), st.sampled_from(MADE + THERE + FOLDERS)),
    st.tuples(st.just("isdir"), st.sampled_from(MADE + THERE + FOLDERS)),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("mkdir"), st.sampled_from(MADE + FOLDERS)),
    st.tuples(st.just("makedirs"), st.sampled_from(MADE + FOLDERS)),
    st.tuples(st.just("rmdir"), st.sampled_from(FOLDERS[:-1])),
    st.tuples(st.just("rmtree"), st.sampled_from(FOLDERS[:-1])),
    st.tuples(st.just("listdir"), st.sampled_from(FOLDERS)),
    st.tuples(st.just("walk"), st.sampled_from(FOLDERS)),
    st.tuples(st.just("replace"), names, names),
    st.tuples(st.just("copy"), names, names),
)


def act(action: tuple[str, ...]) -> Any:
    match action:
        case ("write", name):
            return Path(name).write_text("w")
        case ("append", name):
            with open(name, "a") as file:
                return file.write("a")
        case ("read", name):
            return text_of(name)
        case ("exists", name):
            return os.path.exists(name)
        case ("isdir", name):
            return os.path.isdir(name)
        case ("remove", name):
            return os.remove(name)
        case ("mkdir", name):
            return os.mkdir(name)
        case ("makedirs", name):
            return os.makedirs(name, exist_ok=True)
        case ("rmdir", name):
            return os.rmdir(name)
        case ("rmtree", name):
            return shutil.rmtree(name)
        case ("listdir", name):
            return sorted(os.listdir(name))
        case ("walk", name):
            return sorted((where, sorted(inner), sorted(files)) for where, inner, files in os.walk(name))
        case ("replace", name, target):
            return os.replace(name, target)
        case ("copy", name, target):
            return shutil.copy(name, target) and None
    raise ValueError(action)


# Where there is nothing to delete or to rename, rank 0 may have done it a moment ago: no worker fails of that.
FORGIVEN = ("remove", "rmdir", "rmtree", "replace")


class Sequence:
    """A scenario made of actions: what each gave, or how it failed."""

    def __init__(self, steps: list[tuple[str, ...]]) -> None:
        self.steps = steps

    def __call__(self) -> list[Any]:
        seen = []
        for step in self.steps:
            try:
                seen.append((step, act(step)))
            except OSError as error:
                forgiven = step[0] in FORGIVEN and isinstance(error, FileNotFoundError)
                seen.append((step, None if forgiven else type(error).__name__))
        return [*seen, sorted(glob.glob("**", recursive=True))]


@given(st.lists(actions, min_size=1, max_size=8))
def test_any_sequence_of_actions_looks_as_it_would_alone(silent: Any, steps: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(silent, Path(folder), Sequence(steps))


# -- order -------------------------------------------------------------------------------------------------------------


def list_many() -> Any:
    return os.listdir("many"), [path.name for path in Path("many").iterdir()], [e.name for e in os.scandir("many")]


def test_a_folder_is_listed_in_the_order_that_rank_0_sees(silent: tuple[Pool, Path], tmp_path: Path) -> None:
    """`files = os.listdir(folder)` is a dataset: in another order, sample i would be another one on rank 0."""
    (tmp_path / "many").mkdir()
    for number in range(50):
        (tmp_path / "many" / f"{number * 7919 % 50}.txt").touch()
    assert in_silence(silent, list_many, tmp_path) == run_there(list_many, tmp_path)


# -- rank 0 was faster -------------------------------------------------------------------------------------------------


def after_rank_0(silent: tuple[Pool, Path], folder: Path, scenario: Callable[[], Any]) -> Any:
    """Rank 0 has gone through the same lines already, on the real files."""
    populate(folder)
    began = the_run_begins(folder)
    run_there(scenario, folder)
    return in_silence(silent, scenario, folder, began)


def make_a_folder() -> Any:
    os.mkdir("out")
    Path("out/f.txt").write_text("f")
    return os.path.isdir("out"), Path("out/f.txt").read_text()


def remove_an_old_file() -> Any:
    os.remove("old.txt")
    return os.path.exists("old.txt")


def remove_an_old_tree() -> Any:
    shutil.rmtree("data")
    os.makedirs("data")
    return os.path.isdir("data")


def rotate_the_log() -> Any:
    os.rename("old.txt", "older.txt")
    Path("old.txt").write_text("new")
    return Path("old.txt").read_text(), os.path.exists("older.txt")


def save_and_link() -> Any:
    Path("1.pt").write_text("1")
    os.symlink("1.pt", "latest.pt")
    return Path("latest.pt").read_text()


def create_once() -> Any:
    with open("lock", "x") as file:
        file.write("mine")
    return os.path.exists("lock")


def append_to_a_new_file() -> Any:
    for line in ("1\n", "2\n"):
        with open("new.txt", "a") as file:
            file.write(line)
    return text_of("new.txt")


def log_to_a_database() -> Any:
    with closing(sqlite3.connect("new.db")) as database, database:
        database.execute("create table losses (value real)")
        database.execute("insert into losses values (1)")
        return database.execute("select count(*) from losses").fetchone()


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (append_to_a_new_file, "1\n2\n"),
        (log_to_a_database, (1,)),
        (make_a_folder, (True, "f")),
        (remove_an_old_file, False),
        (remove_an_old_tree, True),
        (rotate_the_log, ("new", True)),
        (save_and_link, "1"),
        (create_once, True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_worker_that_comes_after_rank_0_goes_the_same_way(
    silent: tuple[Pool, Path], tmp_path: Path, scenario: Callable[[], Any], expected: Any
) -> None:
    assert after_rank_0(silent, tmp_path / "real", scenario) == expected


def work_in_a_new_folder() -> Any:
    os.mkdir("run1")
    os.chdir("run1")
    with open("f.txt", "w") as file:
        file.write("f")
    seen = text_of("f.txt"), os.listdir("."), os.path.basename(os.getcwd())
    os.chdir("..")
    return seen, text_of("run1/f.txt"), text_of("old.txt")


def test_a_worker_that_changes_into_a_folder_before_rank_0_has_made_it(silent: Any, tmp_path: Path) -> None:
    populate(tmp_path)
    began = the_run_begins(tmp_path)
    rank_0 = threading.Timer(0.2, (tmp_path / "run1").mkdir)
    rank_0.start()
    try:
        assert in_silence(silent, work_in_a_new_folder, tmp_path, began) == (("f", ["f.txt"], "run1"), "f", "old")
    finally:
        rank_0.join()
    assert list((tmp_path / "run1").iterdir()) == []


# -- what is left alone ------------------------------------------------------------------------------------------------


def use_devices() -> Any:
    with open(os.devnull, "w") as file:
        file.write("x")
    return os.path.exists("/proc/self/status"), os.path.exists("/dev/null")


def test_devices_are_no_files_of_the_scripts(silent: tuple[Pool, Path]) -> None:
    assert in_silence(silent, use_devices, Path("/"), 1.0) == (True, True)
    assert not (silent[1] / "dev").exists()


def where_it_went() -> None:
    Path("new.txt").write_text("n")


def test_what_was_written_is_in_the_scratch_folder(silent: tuple[Pool, Path], tmp_path: Path) -> None:
    in_silence(silent, where_it_went, tmp_path)
    assert not (tmp_path / "new.txt").exists()
    assert Path(f"{silent[1]}{tmp_path / 'new.txt'}").read_text() == "n"


def step_aside(group: Group, folder: Path) -> None:
    with staged(group) as stage:
        Voice(stage, folder / "scratch").install()
        stage.aside = True
        Path(folder / "own.txt").write_text("mine")


def test_a_script_that_distributes_itself_writes_its_own_files(tmp_path: Path) -> None:
    with alone(1) as pool:
        pool.run(step_aside, tmp_path)
    assert (tmp_path / "own.txt").read_text() == "mine"
