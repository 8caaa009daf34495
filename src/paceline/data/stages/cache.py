"""Caching: keeps samples in memory or in a folder, so that each is made only once.

Indexed samples are kept by index (`Memo`), in whatever order they are asked for; of a stream, a whole epoch is kept
(`Cached`). Both keep samples before shuffling and batching.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from paceline.data.error_policy import LostSamples
from paceline.data.planning.job import NOTHING, Step
from paceline.data.planning.nodes import Context, Cursor, Mark, Opener, Settle, Settled
from paceline.data.planning.order import Indices
from paceline.data.sources.memory import Source
from paceline.data.stages import cache_stores
from paceline.errors import UsageError
from paceline.script import tree


class Memo:
    """The samples of another source after some maps, each made once. Samples of equal shapes and types are stored in
    rows of shared memory (or of files): a batch is one gather, and all processes see the rows that one of them
    fills."""

    def __init__(self, source: Source, steps: Sequence[Step], folder: str | None, losses: LostSamples) -> None:
        self.source, self.steps, self.folder, self.losses = source, tuple(steps), folder, losses
        self.gather: Callable[[Indices], Any] | None = self._gather
        self._lock = threading.Lock()
        self._rows: cache_stores.Rows | None = None
        self._odd: dict[int, Any] = {}  # samples whose shapes or types differ from those of the rows
        self._nest: Any = None

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def fetch(self, index: int) -> Any:
        if self._rows is not None and self._rows.has(index):
            return tree.rebuild(self._nest, iter(self._rows.get(index, tree.leaves(self._nest))))
        if index in self._odd:
            return self._odd[index]
        sample = self._make(index)
        self._keep(index, sample)
        return sample

    def _gather(self, indices: Indices) -> Any:
        from paceline.data.formats.collate import collate

        for index in self.missing(indices).tolist():
            self.fetch(index)
        if self._rows is None or self._odd:
            return collate([self.fetch(index) for index in indices.tolist()])
        chosen = torch.from_numpy(indices)
        return tree.rebuild(self._nest, iter([column.index_select(0, chosen) for column in self._rows.columns]))

    def missing(self, indices: Indices) -> Indices:
        """The indices whose samples are not cached yet."""
        return indices if self._rows is None else indices[~self._rows.held(indices)]

    def _make(self, index: int) -> Any:
        sample = self.source.fetch(index)
        for step in self.steps:
            sample = step(sample, lambda _: self.source.name(index), 0, self.losses)
            if sample is NOTHING:
                raise UsageError(
                    f"map {step.name} left out {self.source.name(index)}, but .cache() after it needs every sample.",
                    advice="Leave such samples out before the map (.filter), or write .cache() before this map.",
                )
        return sample

    def _keep(self, index: int, sample: Any) -> None:
        leaves = tree.leaves(sample)
        with self._lock:
            if self._rows is None and not self._odd:
                self._nest = sample
                self._rows = cache_stores.rows_for(leaves, len(self.source), self.folder, self._fingerprint())
            if self._rows is None or not self._rows.put(index, leaves):
                if self.folder is not None:
                    raise UsageError(
                        f".cache({self.folder!r}): the samples are not arrays and numbers of equal shapes.",
                        advice="Write .cache() after a map that gives them equal shapes, or cache in memory: .cache()",
                    )
                self._odd[index] = sample

    def _fingerprint(self) -> str:
        return cache_stores.fingerprint(len(self.source), [step.function for step in self.steps])


class Cached:
    """An epoch of a stream: recorded in the first epoch, and read from memory (or a file) afterwards."""

    even = False

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.kept: list[Any] | None = None

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        at, inner = (0, None) if mark is None else (int(mark["at"]), mark["up"])
        if self.kept is None and self.folder is not None:
            self.kept = cache_stores.read_pass(self._file(context))
        if self.kept is not None:
            return CachedCursor(self, None, self._file(context), at, self.kept[:at])
        if inner is not None:  # resumes in the middle of an epoch; the next whole epoch is recorded
            return CachedCursor(self, up(context, inner), None, at, None)
        cursor = CachedCursor(self, up(context, None), self._file(context), 0, [])
        while at and (got := len(cursor.take(min(at, 256)))):
            at -= got
        return cursor

    def _file(self, context: Context) -> Path | None:
        return self.folder and Path(self.folder) / f"pass.{context.rank}of{context.world}.records"  # type: ignore[return-value]

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        if any(mark is not None and "end" not in mark and mark["up"] is None and mark["at"] for mark in marks):
            raise UsageError(
                "restore() on another number of workers is not possible here: each worker has cached its own part of a "
                "stream.",
                advice="Restore on the same number of workers.",
            )
        inner = below([mark if mark is None or "end" in mark else mark["up"] for mark in marks])
        return lambda context: {"at": 0, "up": inner(context)}


class CachedCursor(Cursor):
    """Without `up`, reads the samples that were recorded."""

    def __init__(self, node: Cached, up: Cursor | None, file: Path | None, at: int, recorded: list[Any] | None) -> None:
        self._node, self._up, self._file, self._at = node, up, file, at
        self._recorded = recorded

    def take(self, count: int) -> list[Any]:
        if self._up is None:
            assert self._node.kept is not None
            got = self._node.kept[self._at : self._at + count]
        else:
            got = list(self._up.take(count))
            if self._recorded is not None:
                self._recorded += got
                if len(got) < count and self._node.kept is None:
                    self._node.kept = self._recorded
                    if self._file is not None:
                        cache_stores.write_pass(self._file, self._recorded)
        self._at += len(got)
        return got

    def where(self) -> Callable[[int], str]:
        return Cursor.where(self) if self._up is None else self._up.where()

    def mark(self) -> Mark:
        return {"at": self._at, "up": None if self._up is None else self._up.mark()}

    def close(self, *, wait: bool = True) -> None:
        if self._up is not None:
            self._up.close(wait=wait)
