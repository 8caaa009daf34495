"""Runs batches of agreed operations where their tensors are: on the host, or on a GPU's own stream for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from paceline.horovod.engine.execution import Executor, Job
from paceline.horovod.engine.process_sets import ProcessSets
from paceline.horovod.engine.timeline import Timeline


class Runner:
    """Used by the background thread only."""

    def __init__(self, sets: ProcessSets) -> None:
        self._sets, self._executor = sets, Executor()
        self._streams: dict[torch.device, Any] = {}
        self.timeline: Timeline | None = None  # set by any thread
        self.join_device = 0  # the GPU for zeros, while this rank has joined

    def run(self, batch: list[Job]) -> list[Any]:
        """The result of each job. Ranks of the process set wait for each other."""
        request = batch[0].known.request
        exchange = self._sets.exchange(request.process_set, request.device)
        ranks, mark = self._sets.ranks[request.process_set], _ignore
        if (timeline := self.timeline) is not None:
            requests = [job.known.request for job in batch]
            timeline.begin(requests)
            mark = partial(timeline.activity, requests)
        # Tensors that were made in inference mode can be written only there. Leaving it switches gradients on.
        inference = any(job.own is not None and job.own.inference for job in batch)
        with torch.inference_mode(inference), torch.no_grad():
            if request.device == "cpu":
                results = self._executor.run(batch, exchange, ranks, mark)
            else:
                results = self._run_on_gpu(batch, lambda: self._executor.run(batch, exchange, ranks, mark))
        if timeline is not None:
            timeline.end([job.known.request for job in batch])
        return results

    def _run_on_gpu(self, batch: list[Job], run: Callable[[], list[Any]]) -> list[Any]:
        """On a stream of its own, after what the submitters' streams had done when they submitted."""
        tensors = [tensor for job in batch if job.own is not None for tensor in job.own.tensors]
        device = tensors[0].device if tensors else torch.device("cuda", self.join_device)
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            for job in batch:
                if job.own is not None and job.own.event is not None:
                    stream.wait_event(job.own.event)
            results = run()
            done = stream.record_event()
        for job in batch:
            if job.own is not None:
                job.own.event = done
        return results


def _ignore(activity: str) -> None:
    pass
