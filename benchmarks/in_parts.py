"""Shared code of benchmarks that run in several commands: a file of trials by name, written after each trial.

A command that is killed loses only its current trial. Commands on several machines, or one after the other, each write
a file; `merge` combines the files.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

ABOUT = "about"  # the table of settings, not of figures


class Kept:
    """Figures by (table, row, key), for example a seed as key, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, table: str, row: str, key: str) -> Any:
        return self.tables.get(table, {}).get(row, {}).get(key)

    def put(self, table: str, row: str, key: str, value: Any) -> None:
        self.tables.setdefault(table, {}).setdefault(row, {})[key] = value
        self.write()

    def claim(self, what: str) -> None:
        """Ends the program if the file holds figures of other settings."""
        known = self.get(ABOUT, "settings", "")
        if known not in (None, what):
            raise SystemExit(
                f"{self.path} holds figures of {known}, but this command measures {what}. Give another --into."
            )
        self.tables.setdefault(ABOUT, {}).setdefault("settings", {})[""] = what

    def write(self) -> None:
        """Writes the file atomically."""
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(self.tables, indent=1) + "\n")
        part.replace(self.path)

    def merge(self, others: Sequence[Path]) -> None:
        """Adds the figures of these files. For the same trial, the last file wins."""
        for path in others:
            tables = json.loads(path.read_text())
            self.claim(tables[ABOUT]["settings"][""])
            for table, rows in tables.items():
                for row, values in rows.items():
                    self.tables.setdefault(table, {}).setdefault(row, {}).update(values)
        self.write()


class Clock:
    """Estimates the remaining time, and decides whether there is time for another trial."""

    def __init__(self, trials: int, limit: float) -> None:
        self.left, self._limit, self._begun = trials, limit, time.monotonic()
        self._took: list[float] = []

    @property
    def longest(self) -> float:
        return max(self._took[-8:], default=0.0)

    def has_time(self) -> bool:
        return time.monotonic() - self._begun + self.longest * 1.2 < self._limit

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self._took.append(time.monotonic() - begun)
        self.left -= 1

    def __str__(self) -> str:
        mean = sum(self._took) / max(1, len(self._took))
        return f"{self._took[-1]:.1f} s; {self.left} to go, about {mean * self.left / 60:.1f} minutes"


@contextlib.contextmanager
def unpacked(data: Path | None) -> Iterator[Path | None]:
    """A folder with the unpacked data sets, because unpacking takes longer than some trials."""
    if data is None or not list((data / "cifar-10").glob("train-*.xz")):
        yield data.resolve() if data else None
        return
    import numpy as np
    from pictures import unpack_differences

    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder)
        (whole / "cifar-10").mkdir()
        if (data / "fashion-mnist").exists():
            (whole / "fashion-mnist").symlink_to((data / "fashion-mnist").resolve())
        for kind, name in (("train", "data_batch_{}"), ("test", "test_batch")):
            files = [unpack_differences(file) for file in sorted((data / "cifar-10").glob(f"{kind}-*.xz"))]
            batches = files if kind == "train" else [tuple(np.concatenate(part) for part in zip(*files, strict=True))]
            for number, (images, labels) in enumerate(batches, 1):
                rows = np.concatenate([labels[:, None], images.reshape(len(labels), -1)], 1).astype(np.uint8)
                (whole / "cifar-10" / f"{name.format(number)}.bin").write_bytes(rows.tobytes())
        yield whole


def carry_out(
    kept: Kept,
    wanted: Sequence[tuple[str, str, str]],
    measure: Callable[[str, str, str], tuple[Any, str]],
    limit: float,
) -> bool:
    """Measures the wanted trials that are missing. `measure` returns figures and a message. False if time ran out."""
    missing = [names for names in wanted if kept.get(*names) is None]
    if len(missing) < len(wanted):
        print(f"{len(wanted) - len(missing)} of {len(wanted)} trials are already measured", flush=True)
    clock = Clock(len(missing), limit)
    for names in missing:
        if not clock.has_time():
            print(f"{clock.left} trials are left for the next command", flush=True)
            return False
        with clock.trial():
            found, said = measure(*names)
            kept.put(*names, found)
        print(f"{', '.join(names)}: {said} ({clock})", flush=True)
    return True
