"""Steps wait for their input."""

from __future__ import annotations

import math

import polars as pl

from paceline.advise.evidence import Evidence, number
from paceline.advise.finding import Figure, Finding
from paceline.advise.wording import command, percent
from paceline.record.pipelines import StageReport
from paceline.units import size

SHARE = 0.05  # of a step: what the field calls input-bound; with less there is little to gain
REMAINS = 0.1  # of loading, where a batch is one gather
HANDED_OVER = 1.3  # times as long: a sample that another process loads is also packed, sent and unpacked
SPARE = 2.0  # times as many loader processes as would just do: loading varies, and a late batch is late for all
FITS = 0.5  # of the device's free memory, that a resident dataset may take
WORTH = 1.02  # a gain below that is none
PAGEABLE = r"Memcpy HtoD.*Pageable"  # copies from ordinary memory, as a trace calls them
READS = ("records", "interleave")  # stages of a pipeline that read files
MOSTLY = 0.5  # of all waiting for input
BUSY = 0.5  # of a stage's time that a core works for it; with less it waits for something else


def find(evidence: Evidence) -> Finding | None:
    """Steps wait for their loader, and the device, where there is one, has nothing to do meanwhile.

    Mended by `resident` where the dataset is tensors that fit into memory, else by `loader=N`, which loads in processes
    of its own and pins memory on a GPU. Predicted: a resident batch takes a tenth of the time, and is not copied from
    memory that is not pinned; N processes load in their share of it, while a step computes, as far as there are cores
    for it. A loader that has processes already needs more of them, or a dataset that does less for a sample (decode
    once, and keep it). Where the script reads from a pipeline of `paceline.data`, the stage that holds it up is named,
    with what it gives at most.
    """
    waiting, step = _waiting(evidence), evidence.step
    if not step or waiting < SHARE * step:
        return None
    loader = evidence.loader
    figures = [Figure("waiting for input", waiting, "s"), Figure("step", step, "s")]
    if loader is not None:
        figures.append(Figure("loader processes", loader.processes))
        figures.append(Figure("dataset", loader.dataset))
        if loader.tensors:
            figures.append(Figure("size of its tensors", loader.bytes, "bytes"))
    slowest = _slowest_stage(evidence)
    if slowest is not None:
        figures.append(Figure("the pipeline's bottleneck", slowest.name))
        figures.append(Figure("results it gives at most", slowest.capacity, "/s"))
        figures.append(Figure("where it is done", _place(slowest)))
    finding = Finding(
        rule="input_bound",
        title=f"{percent(waiting / step)} of a step is waiting for input",
        evidence=figures,
        advice="Do less for a sample: decode once and keep the result, or keep the dataset in memory",
    )
    if slowest is not None:
        _speak_of_stage(finding, evidence, slowest)
    elif loader is None:
        finding.advice = "Load ahead: DataLoader(…, num_workers=N, pin_memory=True), or keep the data on the device"
        finding.predicted_gain = _gain(evidence, REMAINS * waiting)
        finding.how = "loading is hidden but for a tenth"
    elif loader.processes:
        needed = math.ceil(loader.processes * step / max(step - waiting, 1e-9))
        finding.predicted_gain = _gain(evidence, _bound(evidence, waiting))
        finding.how = "with as many processes as needed nothing waits"
        finding.advice = f"More loader processes: DataLoader(…, num_workers={needed}), or do less for a sample"
    elif loader.tensors and _fits(evidence, loader.bytes) and not {"resident", "loader"} & evidence.mods:
        finding.mod, finding.how = "resident", "a batch is one gather: a tenth of the time, and nothing is copied"
        copies = number(pageable_copies(evidence)["total"].sum()) if evidence.clock is not None else 0.0
        finding.predicted_gain = _gain(evidence, REMAINS * waiting, copies=copies)
        finding.advice = f"{command('resident')} ({size(loader.bytes)})"
    elif not {"resident", "loader"} & evidence.mods:
        mod = f"loader={processes_for(evidence)}"
        if gain_of_processes(evidence) > WORTH:
            finding.mod, finding.how = mod, "loaded while a step computes, in N processes"
            finding.predicted_gain = _gain(evidence, _left(evidence))
            finding.advice = command(mod)
    return finding


def _slowest_stage(evidence: Evidence) -> StageReport | None:
    """Of the pipeline, if it is what steps wait for: a script may load by a DataLoader, too."""
    pipeline, steps = evidence.pipeline, evidence.tables.steps
    if pipeline is None:
        return None
    own = number(steps.group_by("rank").agg(pl.col("data").sum())["data"].min()) if steps.height else 0.0
    return pipeline.slowest_stage if pipeline.waited * pipeline.seconds >= MOSTLY * own else None


def _place(stage: StageReport) -> str:
    return stage.where if stage.parallel < 2 else f"{stage.parallel} {stage.where}"


def _speak_of_stage(finding: Finding, evidence: Evidence, slowest: StageReport) -> None:
    """The stage of a pipeline that steps wait for, and what helps there."""
    assert evidence.pipeline is not None
    ahead = any(stage.where != "here" for stage in evidence.pipeline.stages)
    if not ahead:
        waiting = _waiting(evidence)
        left = max(waiting - (evidence.step - waiting), _bound(evidence, waiting), 0.0)
        finding.predicted_gain, finding.how = _gain(evidence, left), "made while a step computes"
        finding.advice = f"Let {slowest.name} be done while a step computes: end the pipeline with .prefetch()"
    elif slowest.name.startswith(READS):
        finding.advice = f"Read more files at a time in {slowest.name}: parallel=N, or pack fewer, larger ones"
    elif slowest.busy < BUSY:
        finding.advice = f"{slowest.name} waits more than it computes, for a disk or for cores: try parallel=N"
    else:
        finding.advice = f"Do less in {slowest.name}: keep what it makes with .cache(), or make less of it"


def _waiting(evidence: Evidence) -> float:
    """Where there is a device, what it idled for; else the least that any worker waits: one that waits alone is slow by
    itself, which is another finding."""
    if evidence.clock is not None:
        return evidence.clock.input
    split = evidence.settled.filter("split") if evidence.settled.height else evidence.settled
    by_rank = split.group_by("rank").agg(pl.col("data").mean())["data"].min() if split.height else None
    # A mean, beside steps whose length is a median: a few long waits must not be more than all of a step.
    return min(number(by_rank), evidence.step) if by_rank is not None else evidence.parts["data"]


def _gain(evidence: Evidence, left: float, copies: float = 0.0) -> float:
    """Where only `left` seconds of waiting remain, and these `copies` are not made."""
    waiting = _waiting(evidence)
    if evidence.clock is not None:
        return evidence.clock.gain(input=waiting - left, device=copies, launching=copies)
    return evidence.step / (evidence.step - waiting + left)


def pageable_copies(evidence: Evidence) -> pl.DataFrame:
    """Copies of batches to the device from ordinary memory, of those in `evidence.kernels`: the host waits for them."""
    return evidence.kernels.filter((pl.col("kind") == "copy") & pl.col("name").str.contains(PAGEABLE))


def processes_for(evidence: Evidence) -> int:
    """As many as keep up with a step, within the cores that are there."""
    waiting = _waiting(evidence)
    rest = max(evidence.step - waiting, 1e-9)
    cores = max(evidence.cores, 2)
    most = max(cores // 2, 1) if evidence.clock is None else max(cores - evidence.workers, 1)
    return max(1, min(math.ceil(waiting * HANDED_OVER / rest * SPARE), most))


def gain_of_processes(evidence: Evidence) -> float:
    """Of loading in so many processes, where there are none."""
    return _gain(evidence, _left(evidence))


def _left(evidence: Evidence) -> float:
    """Seconds of waiting that so many processes leave."""
    waiting = _waiting(evidence)
    loaded = waiting * HANDED_OVER / processes_for(evidence)
    return max(loaded - (evidence.step - waiting), _bound(evidence, waiting), 0.0)


def _bound(evidence: Evidence, waiting: float) -> float:
    """Seconds of waiting that remain because the cores have no time left: loading ahead is still work."""
    if not evidence.cores or not evidence.worker_samples.height:
        return 0.0
    used = float(evidence.worker_samples.group_by("rank").mean()["cpu"].sum())  # cores, of all workers
    busy = min(used / evidence.cores, 1.0) * evidence.step
    return max(busy - (evidence.step - waiting), 0.0)


def _fits(evidence: Evidence, count: int) -> bool:
    """On one GPU it lies there; else on the host, where it is already."""
    if not evidence.memory_total or evidence.workers > 1:
        return True
    return count < FITS * (evidence.memory_total - evidence.memory)
