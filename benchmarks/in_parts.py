"""What the benchmarks share that are made by several commands: trials by name, in a file that is written after each.

A command that is killed loses the trial that it was in, and no other. Commands on several machines, or one after the
other, each leave a file; `merge` makes one of them.
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

ABOUT = "about"  # a table of words


class Kept:
    """Figures by (table, row, seed or the like), in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, table: str, row: str, key: str) -> Any:
        return self.tables.get(table, {}).get(row, {}).get(key)

    def put(self, table: str, row: str, key: str, value: Any) -> None:
        self.tables.setdefault(table, {}).setdefault(row, {})[key] = value
        self.write()

    def claim(self, what: str) -> None:
        """Figures of other settings do not go into the same file."""
        known = self.get(ABOUT, "settings", "")
        if known not in (None, what):
            raise SystemExit(f"{self.path} holds figures of {known}; these are of {what}. Give another --into.")
        self.tables.setdefault(ABOUT, {}).setdefault("settings", {})[""] = what

    def write(self) -> None:
        """As a whole or not at all."""
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(self.tables, indent=1) + "\n")
        part.replace(self.path)

    def merge(self, others: Sequence[Path]) -> None:
        """What several files have; of the same trial, the last one's."""
        for path in others:
            tables = json.loads(path.read_text())
            self.claim(tables[ABOUT]["settings"][""])
            for table, rows in tables.items():
                for row, values in rows.items():
                    self.tables.setdefault(table, {}).setdefault(row, {}).update(values)
        self.write()


class Clock:
    """Says how long the rest will take, and when there is no time for another trial."""

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
    """The real sets in a folder from which they are read at once: unpacking takes longer than some trials."""
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
    """Measures what is wanted and not there yet: figures to keep, words to say. False where time was over before."""
    missing = [names for names in wanted if kept.get(*names) is None]
    if len(missing) < len(wanted):
        print(f"{len(wanted) - len(missing)} of {len(wanted)} are there already", flush=True)
    clock = Clock(len(missing), limit)
    for names in missing:
        if not clock.has_time():
            print(f"{clock.left} are left for the next command", flush=True)
            return False
        with clock.trial():
            found, said = measure(*names)
            kept.put(*names, found)
        print(f"{', '.join(names)}: {said} ({clock})", flush=True)
    return True
