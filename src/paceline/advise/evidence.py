"""The evidence that rules read: a record's run, steps, traces, samples and facts, each read at its first use.

Numbers are for a mean step of one worker, in seconds, unless a name says otherwise. If a record lacks something (a
trace from elsewhere has no steps, a run without a GPU no device), the number is empty or None, and rules are silent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from paceline.record.facts import Facts, LoaderFacts, ModelFacts, read_facts
from paceline.record.inside import Folder
from paceline.record.phases import EVALUATION, PHASES
from paceline.record.pipelines import PipelineReport, most_waited_for, read_pipelines
from paceline.record.samples import Sample, read_samples
from paceline.record.schema import Run
from paceline.tables.devices import gpu_samples, host_samples, worker_samples
from paceline.tables.figures import Figures, columns_in, figures
from paceline.tables.iterations import counted
from paceline.tables.kernels import kernels, kernels_by_op, launches
from paceline.tables.memory import memory_peaks
from paceline.tables.ops import ops
from paceline.tables.records import Tables, read_record
from paceline.tables.stragglers import stragglers
from paceline.tables.timeline import timeline
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.steps import breakdown, synchronising, windows
from paceline.tables.waits import waits


class Evidence:
    """The evidence of one run. Read-only."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    @classmethod
    def of_record(cls, folder: Path) -> Evidence:
        return cls(read_record(folder))

    # -- the run -----------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run | None:
        return self.tables.run

    @property
    def workers(self) -> int:
        return len(self.run.workers) if self.run else max(len(self.traces), *(t.world for t in self.traces), 1)

    @property
    def mods(self) -> set[str]:
        """Names of the run's mods."""
        return {mod.partition("=")[0] for mod in self.run.mods} if self.run else set()

    @cached_property
    def facts(self) -> dict[int, Facts]:
        """Facts by rank, for ranks that wrote any."""
        if self.tables.folder is None or self.run is None:
            return {}
        found = {worker.rank: read_facts(self.tables.folder, worker.rank) for worker in self.run.workers}
        return {rank: facts for rank, facts in found.items() if facts is not None}

    @property
    def first_facts(self) -> Facts | None:
        return next(iter(self.facts.values()), None)

    @property
    def loader(self) -> LoaderFacts | None:
        """The training loader: the first one that the script iterated."""
        facts = self.first_facts
        return facts.loaders[0] if facts and facts.loaders else None

    @cached_property
    def pipeline(self) -> PipelineReport | None:
        """The pipeline of `paceline.data` that the script waited longest for, on the first worker that waited; None if
        the script uses none."""
        if self.tables.folder is None or self.run is None:
            return None
        found = (most_waited_for(read_pipelines(self.tables.folder, worker.rank)) for worker in self.run.workers)
        return next((one.report for one in found if one is not None), None)

    @property
    def models(self) -> list[ModelFacts]:
        return self.first_facts.models if self.first_facts else []

    @property
    def cores(self) -> int:
        """Number of CPU cores available to the run; 0: not known."""
        topology = self.run.topology if self.run else {}
        count, quota = len(topology.get("cores") or ()), topology.get("quota")
        return min(count, max(1, math.ceil(quota))) if quota else count

    @property
    def gpus(self) -> list[str]:
        """GPUs available to the run."""
        return list((self.run.topology if self.run else {}).get("gpus") or ())

    # -- steps -------------------------------------------------------------------------------------------------------

    @cached_property
    def settled(self) -> pl.DataFrame:
        """The steps that count: after the warm-up, not under the profiler, without evaluation."""
        found = counted(self.tables.steps)
        return found.filter(pl.col("evaluation") == 0)

    @cached_property
    def figures(self) -> Figures:
        """Step time, samples/s, slowest worker: the figures that every verb and page shows."""
        return figures(columns_in(self.tables.steps))

    @cached_property
    def step(self) -> float:
        """Seconds per step without the profiler; of traced steps if there are no others."""
        return self.figures.step_time or self.phases.get("wall", 0.0)

    @cached_property
    def parts(self) -> dict[str, float]:
        """The phases of a step, which add up to `step`: from the step record, else from the trace."""
        if not (self.settled.height and self.settled["split"].any()):
            return {part: self.phases.get(part, 0.0) for part in PHASES}
        return {part: self.figures.step[part] if part != EVALUATION else 0.0 for part in PHASES}

    @cached_property
    def batch(self) -> int:
        """Samples per step; 0: not known."""
        return int(number(self.settled["samples"].median())) if self.settled.height else 0

    @cached_property
    def stragglers(self) -> pl.DataFrame:
        """See `tables.stragglers`."""
        return stragglers(self.tables.steps)

    # -- traces ------------------------------------------------------------------------------------------------------

    @property
    def traces(self) -> list[Trace]:
        return self.tables.traces if self.tables.paths else []

    @property
    def has_device(self) -> bool:
        return any(trace.has_device for trace in self.traces)

    @cached_property
    def traced(self) -> int:
        """The number of traced steps, over all ranks."""
        return max(sum(windows(trace).height for trace in self.traces), 1)

    @cached_property
    def phases(self) -> dict[str, float]:
        """`wall` and the phases of a traced step, on the host. The profiler makes them longer."""
        return _means(self.tables.over_ranks(breakdown)) if self.traces else {}

    @cached_property
    def device(self) -> dict[str, float]:
        """How a device spent a traced step: see `tables.timeline`. Empty without a device."""
        return _means(self.tables.over_ranks(timeline)) if self.has_device else {}

    @cached_property
    def device_count(self) -> int:
        """The number of active devices, over all ranks."""
        return sum(trace.device["device"].n_unique() for trace in self.traces)

    @cached_property
    def waited(self) -> float:
        """Seconds per traced step in which the host was blocked, waiting for the device."""
        total = 0
        for trace in self.traces:
            steps = windows(trace)
            total += int(synchronising(trace).length_within(steps["start"].to_numpy(), steps["end"].to_numpy()).sum())
        return total / 1e9 / self.traced

    @cached_property
    def clock(self) -> StepClock | None:
        """A model that predicts the effect of a change on a step; None without a device."""
        if not self.device:
            return None
        split = self.settled.height and self.settled["split"].any()
        return clock(
            wall=self.step or self.device["wall"],
            data=self.parts["data"] if split else None,
            traced=self.device | {"data": self.phases.get("data", 0.0)},
            waited=self.waited,
        )

    @cached_property
    def ops(self) -> pl.DataFrame:
        """`tables.ops` by shapes, for all ranks: calls and times per step of one rank."""
        return self._per_step(lambda trace: ops(trace, by="shapes"), OP_FIGURES)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """`tables.kernels`, for all ranks: calls and times per step of one rank."""
        return self._per_step(kernels, ("calls", "total", "bytes"))

    @cached_property
    def kernels_by_op(self) -> pl.DataFrame:
        return self._per_step(kernels_by_op, ("calls", "total"))

    @cached_property
    def launches(self) -> pl.DataFrame:
        return self.tables.over_ranks(launches) if self.has_device else pl.DataFrame()

    @cached_property
    def waits(self) -> pl.DataFrame:
        """Lines of the script that wait, for all ranks: calls and seconds per step of one rank."""
        if not self.traces:
            return pl.DataFrame()
        ranks = len(self.traces)
        return (
            self.tables.over_ranks(waits)
            .group_by("what", "file", "line")
            .agg(calls=pl.col("calls").sum() / ranks, seconds=pl.col("seconds").sum() / ranks)
            .sort(["seconds", "file", "line"], descending=[True, False, False])
        )

    def marked(self, pattern: str) -> float:
        """The number of host events per step whose name matches."""
        names = [trace.host["name"].cast(pl.String).str.contains(pattern).sum() for trace in self.traces]
        return sum(int(count or 0) for count in names) / self.traced

    @cached_property
    def gpu(self) -> dict[str, Any]:
        """Torch's properties of the first device: name, totalGlobalMem, computeMajor …"""
        return next((trace.head.devices[0] for trace in self.traces if trace.head.devices), {})

    # -- memory and samples ------------------------------------------------------------------------------------------

    @cached_property
    def memory(self) -> int:
        """Peak bytes that torch allocated on a device; 0: not known."""
        if not self.has_device:
            return 0
        recorded = self.tables.steps["memory"].max() if self.tables.steps.height else 0
        peaks = self.tables.over_ranks(memory_peaks).filter(pl.col("device") >= 0)["allocated"].max()
        return int(max(number(recorded), number(peaks)))

    @cached_property
    def memory_total(self) -> int:
        """Bytes of a device's memory; 0: not known."""
        told = self.gpu.get("totalGlobalMem", 0)
        return int(told) if isinstance(told, int) else 0

    @cached_property
    def samples(self) -> list[Sample]:
        """The samples in the order they were taken."""
        return read_samples(self._folder)

    @cached_property
    def gpu_samples(self) -> pl.DataFrame:
        return gpu_samples(self._folder)

    @cached_property
    def host_samples(self) -> pl.DataFrame:
        return host_samples(self._folder)

    @cached_property
    def worker_samples(self) -> pl.DataFrame:
        return worker_samples(self._folder)

    @property
    def _folder(self) -> Path | Folder:
        return self.tables.folder or Path("/nonexistent")

    def _per_step(self, table: Any, figures: Sequence[str]) -> pl.DataFrame:
        if not self.traces:
            return pl.DataFrame()
        return self.tables.over_ranks(table).with_columns(pl.col(list(figures)) / self.traced)


OP_FIGURES = ("calls", "host_self", "host_total", "kernels", "device_self", "device_total")


def _means(table: pl.DataFrame) -> dict[str, float]:
    return {name: number(table[name].mean()) for name in table.columns if name not in ("rank", "device", "step")}


def number(value: Any) -> float:
    """A polars result as a float; 0 if it is null or NaN."""
    return float(value) if isinstance(value, int | float) and value == value else 0.0


# -- the clock of steps -----------------------------------------------------------------------------------------------
# While the host waits for input, or restarts after a wait for the device, the device is idle: these times add up. In
# the rest of the step the host launches while the device computes, and the slower of the two sets the time (the race).
# So a change that makes the device faster gains nothing if the host is the slower one, and the other way round.
#
#     wall = input + synchronisation + peer + race        race = the slower of launching and device, plus the loss when
#                                                         the slower one changes during a step
# Tracing slows down the host, not the device. So device times are those of the trace; host times are scaled to fit the
# steps that were not traced.


PROFILER = 1.6  # slow-down of the host under the profiler, assumed if untraced steps cannot show it: the device decides
HOST_DECIDES = 0.3  # idle fraction of an untraced step, without input: above it, step times show the host's slow-down


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClock:
    """Seconds per mean step, without the profiler."""

    wall: float
    input: float  # the device idles: the script waits for its loader
    synchronisation: float  # the device idles: the host restarts after a wait for the device
    peer: float  # the device idles: the host waits for other workers
    launching: float  # in the race: time that the host needs
    device: float  # in the race: time that the device needs for kernels and copies
    turns: float  # in the race: time lost beyond the slower of both

    @property
    def host_decides(self) -> bool:
        return self.launching >= self.device

    def after(
        self, *, device: float = 0.0, launching: float = 0.0, input: float = 0.0, synchronisation: float = 0.0
    ) -> float:
        """Seconds per step after these savings in seconds."""
        race = max(self.launching - launching, self.device - device, 0.0)
        before = max(self.launching, self.device)
        turns = self.turns * race / before if before else 0.0
        rest = max(self.input - input, 0.0) + max(self.synchronisation - synchronisation, 0.0) + self.peer
        return max(rest + race + turns, 1e-9)

    def gain(
        self, *, device: float = 0.0, launching: float = 0.0, input: float = 0.0, synchronisation: float = 0.0
    ) -> float:
        """The speed-up after these savings in seconds."""
        return self.wall / self.after(device=device, launching=launching, input=input, synchronisation=synchronisation)

    def gain_without_waits(self) -> float:
        """The speed-up if the host never waits for the device: all of the host's work is then part of the race. Limited
        by the device's time."""
        host = self.input + self.synchronisation + self.launching
        return self.wall / max(host + self.peer, self.device + self.peer, 1e-9)


def clock(*, wall: float, data: float | None, traced: dict[str, float], waited: float) -> StepClock:
    """The model of a step. `wall` and `data`: seconds of an untraced step, and of loading in it (None: not known).
    `traced`: the device's times in a mean traced step (`wall`, `data`, `compute`, `communication`, `copy`, `idle`,
    `idle_*`). `waited`: seconds of it in which the host was blocked, waiting for the device."""
    busy = traced["compute"] + traced["communication"] + traced["copy"]
    idle = {cause: traced[f"idle_{cause}"] for cause in ("input", "peer", "synchronisation", "host", "queue")}
    whole, left = sum(idle.values()), max(wall - busy, 0.0)
    input = idle["input"] * min(left / whole, 1.0) if whole else 0.0
    if data is not None and traced["data"]:
        input = min(data * idle["input"] / traced["data"], left)  # the device idles during the same fraction of loading
    others = whole - idle["input"]
    scale = min((left - input) / others, 1.0) if others > 0 else 1.0
    own = max(traced["wall"] - waited - idle["input"] - idle["peer"] - idle["synchronisation"], 0.0)
    late = left - input > HOST_DECIDES * wall
    slowed = max((traced["wall"] - idle["input"]) / (wall - input), 1.0) if late else PROFILER
    # Launched work that has not begun is launch latency, which a host that runs ahead hides.
    race = busy + (idle["host"] + idle["queue"]) * scale
    launching = min(own / slowed, race)
    return StepClock(
        wall=busy + input + others * scale,
        input=input,
        synchronisation=idle["synchronisation"] * scale,
        peer=idle["peer"] * scale,
        launching=launching,
        device=busy,
        turns=max(race - max(launching, busy), 0.0),
    )
