"""Native code on another rank finds a file that rank 0 writes later; and a file that is counted is a plain one."""

from __future__ import annotations

import gc
import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pool import alone
from staged import staged

from paceline.comm.group import Group
from paceline.script.output import in_step
from paceline.script.output.in_step import InStep
from paceline.script.output.rank0 import Voice


def write_in_turn(group: Group, folder: Path, names: list[str]) -> str:
    """Rank 0 writes its file only when rank 1 waits for it. What a child process of rank 1 then reads."""
    os.chdir(folder)
    waits = group.store("waits")
    with staged(group) as stage:
        own = InStep(stage, folder / "scratch" / "written", is_first=group.rank == 0)
        group.agree()  # rank 0 has made the file that they share
        if group.rank == 0:
            own.install()
            waits.wait(["now"])
        else:
            Voice(stage, folder / "scratch" / "rank1", None, own).install()
            in_step.time = Told(lambda: waits.set("now", "1"))  # type: ignore[attr-defined, assignment]
        with open("part.txt", "w") as file:
            file.write("the first ")
        os.replace("part.txt", names[group.rank])
        with open(names[group.rank], "a") as file:
            file.write("and the second line")
        read = subprocess.run(["cat", names[0]], capture_output=True, text=True, check=False).stdout
        group.agree()
        return read


class Told:
    """The module `time`, whose `sleep` says that somebody sleeps."""

    def __init__(self, tell: Callable[[], None]) -> None:
        import time

        self.monotonic, self._sleep, self._tell = time.monotonic, time.sleep, tell

    def sleep(self, seconds: float) -> None:
        self._tell()
        self._sleep(seconds)


@pytest.mark.parametrize("names", [["a.txt", "a.txt"], ["of rank 0.txt", "of rank 1.txt"]], ids=["same", "other"])
def test_a_child_process_reads_what_the_script_has_just_written(tmp_path: Path, names: list[str]) -> None:
    with alone(2) as pool:
        assert pool.run(write_in_turn, tmp_path, names) == ["the first and the second line"] * 2


def opened(opens: Callable[..., Any]) -> list[Any]:
    """What a script may see of files that it writes."""
    found: list[Any] = []
    for mode, text in (("w", "a\nb"), ("a", "c"), ("r+", "d"), ("w+", "e"), ("wb", b"a"), ("ab+", b"b"), ("r+b", b"c")):
        with opens("file", mode) as file:
            file.write(text)
            found += [type(file), file.mode, file.name, file.tell(), file.closed, file.fileno() > 2]
        found += [file.closed, Path("file").read_bytes()]
    with opens("raw", "wb", 0) as file:
        found += [isinstance(file, io.FileIO), file.write(b"at once"), Path("raw").read_bytes()]
    opens("left", "w", encoding="utf-16", newline="\r\n").write("ä\n")
    held = [opens("in a circle", "w")]
    held[0].write("kept")
    held.append(held)
    del held
    gc.collect()
    found += [Path(name).read_bytes() for name in ("left", "in a circle")]
    for wrong in (("w", 0), ("wb", -1, "utf-8"), ("ww",), ("wbt",)):
        with pytest.raises(ValueError, match=" ") as error:
            opens("wrong", *wrong)
        found.append(str(error.value))
    with pytest.raises(IsADirectoryError):
        opens(".", "w")
    return found


def test_a_file_that_is_counted_is_a_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "ours").mkdir()
    closed: list[str] = []
    monkeypatch.chdir(tmp_path / "plain")
    expected = opened(open)
    monkeypatch.chdir(tmp_path / "ours")
    counts = lambda file, *args, **kwargs: in_step._open(open, lambda: closed.append(file), file, *args, **kwargs)  # noqa: E731
    assert opened(counts) == expected
    assert closed == ["file"] * 7 + ["raw", "left", "in a circle"]
