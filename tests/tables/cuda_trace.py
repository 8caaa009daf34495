"""Traces of a GPU that is not there: a host thread that launches, streams that run, written in torch's own format.

A `Machine` keeps the host's clock and when each stream is free. Its methods write the events that torch.profiler writes
for the same doings: the operator, the launch on the host, the kernel on the device, joined by ids. What a test expects
can then be computed from what it did.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BASE = 3_872_733_057_105_671  # nanoseconds after the trace's base time: as large as in a real trace
PID, THREAD = 4711, 4712
COMPUTE, COMMUNICATION = 7, 20  # streams, as torch numbers them


class Machine:
    """One rank. Times are nanoseconds."""

    def __init__(self, rank: int = 0, world: int = 1, *, latency: int = 3_000, first: int = 1) -> None:
        self.rank, self.world, self.latency = rank, world, latency
        self.now = BASE
        self.free: dict[int, int] = {}  # when each stream has done what was given to it
        self.events: list[dict[str, Any]] = []
        self.thread = THREAD
        self._next = 1
        self._ops: list[int] = []
        self._step = first - 1

    # -- the host ------------------------------------------------------------------------------------------------

    def work(self, nanoseconds: int) -> None:
        """The host does something that leaves no event."""
        self.now += nanoseconds

    @contextmanager
    def op(self, name: str, host: int = 2_000, **args: Any) -> Iterator[None]:
        """An operator; what is launched inside belongs to it. `host` is its own time, half before and half after."""
        with self._span("cpu_op", name, host, args):
            yield

    @contextmanager
    def annotation(self, name: str, host: int = 0) -> Iterator[None]:
        with self._span("user_annotation", name, host, {}):
            yield

    @contextmanager
    def step(self) -> Iterator[None]:
        """As `profiler.step()` marks it."""
        self._step += 1
        with self.annotation(f"ProfilerStep#{self._step}"):
            yield

    @contextmanager
    def _span(self, cat: str, name: str, host: int, args: dict[str, Any]) -> Iterator[None]:
        number, start = self._id(), self.now
        event = self._event(cat, name, PID, self.thread, start, 0, {"External id": number, **args, "Ev Idx": number})
        self._ops.append(number)
        self.now += host // 2
        yield
        self.now += host - host // 2
        self._ops.pop()
        event["dur"] = self.now - start

    # -- the device ----------------------------------------------------------------------------------------------

    def launch(self, kernel: str, nanoseconds: int, *, stream: int = COMPUTE, host: int = 4_000, **args: Any) -> int:
        """Launches a kernel. Gives back when it ends."""
        correlation = self._runtime("cudaLaunchKernel", host)
        told = {"registers per thread": 32, "shared memory": 0, "grid": [8, 1, 1], "block": [128, 1, 1], **args}
        return self._on_device("kernel", kernel, nanoseconds, stream, correlation, {"queued": 0, **told})

    def copy(
        self, kind: str, nbytes: int, nanoseconds: int, *, stream: int = COMPUTE, host: int = 4_000, wait: bool = False
    ) -> int:
        """Copies, such as `HtoD (Pageable -> Device)`; with `wait` the host waits for it."""
        start = self.now
        correlation = self._runtime("cudaMemcpyAsync", host)
        told = {"bytes": nbytes, "memory bandwidth (GB/s)": nbytes / max(nanoseconds, 1)}
        end = self._on_device("gpu_memcpy", f"Memcpy {kind}", nanoseconds, stream, correlation, told)
        if wait:
            self.events[-2]["dur"] = max(end, self.now) - start
            self.now = max(end, self.now)
        return end

    def synchronize(self, name: str = "cudaDeviceSynchronize", stream: int | None = None) -> None:
        """The host waits for the device, or for one stream."""
        free = self.free.get(stream, 0) if stream is not None else max(self.free.values(), default=0)
        start, self.now = self.now, max(self.now + 1_000, free + 1_000)
        told = {"cbid": 165, "correlation": self._id()}
        self._event("cuda_runtime", name, PID, self.thread, start, self.now - start, told)

    def wait_for(self, waiting: int, other: int) -> None:
        """What comes next on stream `waiting` begins after what is on stream `other`."""
        self.free[waiting] = max(self.free.get(waiting, 0), self.free.get(other, 0))

    def memory(self, nbytes: int, address: int, allocated: int, reserved: int, device: int = 0) -> None:
        told = {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": nbytes, "Device Id": device}
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PID, "tid": self.thread}
            | {"ts": self.now, "args": {**told, "Device Type": 1 if device >= 0 else 0, "Addr": address}}
        )

    def _runtime(self, name: str, host: int) -> int:
        correlation, start = self._id(), self.now
        self.now += host
        told = {"External id": self._ops[-1]} if self._ops else {}
        self._event(
            "cuda_runtime", name, PID, self.thread, start, host, {**told, "cbid": 211, "correlation": correlation}
        )
        return correlation

    def _on_device(
        self, cat: str, name: str, nanoseconds: int, stream: int, correlation: int, args: dict[str, Any]
    ) -> int:
        start = max(self.now + self.latency, self.free.get(stream, 0))
        self.free[stream] = start + nanoseconds
        told = {"External id": self._ops[-1]} if self._ops else {}
        told |= {"device": self.rank, "context": 1, "stream": stream, "correlation": correlation}
        self._event(cat, name, self.rank, stream, start, nanoseconds, {**told, **args})
        return start + nanoseconds

    def _id(self) -> int:
        self._next += 1
        return self._next

    def _event(
        self, cat: str, name: str, pid: int, tid: int, ts: int, dur: int, args: dict[str, Any]
    ) -> dict[str, Any]:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        self.events.append(event)
        return event

    # -- the file ------------------------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        gpu = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "computeMajor": 9, "computeMinor": 0}
        told: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{**gpu, "numSms": 132}]}
        if self.world > 1:
            told["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        return {**told, "displayTimeUnit": "ms", "baseTimeNanoseconds": 1790857026000000000}

    def write(self, path: Path) -> Path:
        """Writes the trace; compressed where the name ends in .gz."""
        with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else open(path, "w") as file:
            head = json.dumps(self.head())[:-1]
            file.write(head + ', "traceEvents": [')
            file.write(_meta("process_name", PID, 0, "name", "python"))
            file.write(_meta("process_labels", self.rank, 0, "labels", f"GPU {self.rank}"))
            for event in self.events:
                file.write(",\n" + _told(event))
                if event["cat"] in ("cuda_runtime", "kernel", "gpu_memcpy") and "correlation" in event["args"]:
                    way = "s" if event["cat"] == "cuda_runtime" else "f"
                    file.write(
                        f',\n  {{\n    "ph": "{way}", "id": {event["args"]["correlation"]}, "pid": {event["pid"]}, '
                        f'"tid": {event["tid"]}, "ts": {_micro(event["ts"])},\n    "cat": "ac2g", "name": "ac2g"\n  }}'
                    )
            start = min((event["ts"] for event in self.events), default=BASE)
            file.write(
                f',\n  {{\n    "ph": "X", "cat": "Trace", "ts": {_micro(start)}, "dur": {_micro(self.now - start)}, '
                f'"pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n    '
                f'"args": {{\n      "Op count": 0\n    }}\n  }}\n  ],\n  "traceName": "trace.json"\n}}'
            )
        return path


def _meta(name: str, pid: int, tid: int, key: str, value: str) -> str:
    told = json.dumps({"ph": "M", "name": name, "ts": 1.5, "pid": pid, "tid": tid, "args": {key: value}})
    return ("\n  " if name == "process_name" else ",\n  ") + told


def _told(event: dict[str, Any]) -> str:
    dur = f', "dur": {_micro(event["dur"])}' if "dur" in event else ""
    return (
        f'  {{\n    "ph": "{event["ph"]}", "cat": "{event["cat"]}", "name": {json.dumps(event["name"])}, '
        f'"pid": {event["pid"]}, "tid": {event["tid"]},\n    "ts": {_micro(event["ts"])}{dur},\n    "args": '
        f"{json.dumps(event['args'])}\n  }}"
    )


def _micro(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
