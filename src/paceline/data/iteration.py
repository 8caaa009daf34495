"""One loop over a pipeline, for one epoch: the iterator that a `for` loop uses, and what the pipeline knows of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from paceline.data.execution.engines import Runtime
from paceline.data.execution.parallel_map import Rows
from paceline.data.planning.nodes import Cursor
from paceline.data.report import keeper
from paceline.errors import UsageError
from paceline.script.seams.api import current


class Loop:
    """What the script holds: the run, and the pipeline, whose finalizer ends the threads and processes that the run
    uses. The pipeline holds the run: if the run held the pipeline, both would live until the garbage collector came."""

    def __init__(self, pipeline: object, run: Run) -> None:
        self._pipeline, self._run = pipeline, run

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Any:
        return self._run.next()


class Run:
    """One loop over a pipeline."""

    def __init__(
        self,
        runtime: Runtime,
        cursor: Cursor,
        epoch: int,
        title: str,
        hand_out: Callable[[Callable[[], Any]], Any] | None,
    ) -> None:
        self.cursor, self.epoch, self.ended = cursor, epoch, False
        self._hand_out = hand_out  # builds the batch that the script sees if workers share batches; otherwise None
        self._clock, self._losses = runtime.clock, runtime.losses
        self._final: dict[str, Any] | None = None
        self._runtime, self._keeper = runtime, keeper()
        if self._keeper is not None:
            self._keeper.begins(runtime, title)

    def next(self) -> Any:
        """Under `paceline run` this is the on_batch seam, and its time counts as data time."""
        stage = current()
        if stage is None or threading.current_thread() is not threading.main_thread():
            return self._whole(self._next())
        stage.watch.enter("data")
        try:
            batch = self._next() if self._hand_out is None else self._hand_out(self._next)
        finally:
            stage.watch.leave()
        stage.emit("on_batch", batch)
        return batch

    def _whole(self, batch: Any) -> Any:
        """Outside the main thread a worker's rows cannot be combined with the rows of other workers."""
        if isinstance(batch, Rows):
            raise UsageError(
                "A loop over a pipeline began in the script's main thread and continues in another thread.",
                advice="Call iter(pipeline) in the thread that takes the batches.",
            )
        return batch

    def _next(self) -> Any:
        if not self.ended:
            self._clock.asked()
            got = self.cursor.take(1)
            if len(got):
                self._clock.answered()
                return got[0]
            self._clock.ended()
            self.ended = True
            self._final = self.stands()
            self.cursor.close()
            self._losses.say()
            self.tell()
        raise StopIteration

    def tell(self) -> None:
        """Writes the pipeline's report so far to the record of the run, if there is one."""
        if self._keeper is not None:
            self._keeper.ended(self._runtime)

    def stands(self) -> dict[str, Any]:
        return self._final or {"epoch": self.epoch, "ended": self.ended, "mark": self.cursor.mark()}

    def __del__(self) -> None:
        self.cursor.close(wait=False)
