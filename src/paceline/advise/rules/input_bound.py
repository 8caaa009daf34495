"""Steps wait for input."""

from __future__ import annotations

import math

import polars as pl

from paceline.advise.evidence import Evidence, number
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.record.pipelines import StageReport
from paceline.units import size

SHARE = 0.05  # share of a step: the usual limit for input-bound; with less there is little to gain
REMAINS = 0.1  # share of the loading time if a batch is one gather
HANDED_OVER = 1.3  # times as long: a sample from another process is also packed, sent and unpacked
SPARE = 2.0  # times the loader processes that just suffice: loading varies, and a late batch delays everything
FITS = 0.5  # share of the device's free memory that a resident dataset may take
WORTH = 1.02  # a smaller gain is not reported
PAGEABLE = r"Memcpy HtoD.*Pageable"  # the trace's name for copies from memory that is not pinned
READS = ("records", "interleave")  # stages of a pipeline that read files
MOSTLY = 0.5  # share of all waiting for input
WAITS = 0.5  # share of the time of making batches in which the script's thread computes; with less, it mostly waits
MOST_PER_CORE = 4  # loader processes, if they mostly wait
BUSY = 0.5  # share of a stage's time in which a core works for it; with less, the stage waits for something else


def find(evidence: Evidence) -> Finding | None:
    """Steps wait for their loader, and the device, if there is one, is idle meanwhile.

    Fixed by `resident` if the dataset consists of tensors that fit into memory, else by `loader=N`, which loads in
    separate processes and pins memory on a GPU. Predicted: a resident batch takes a tenth of the time, and needs no
    copy from memory that is not pinned; N processes load in parallel while a step computes, as far as there are cores.
    Loading that mostly waits (for a disk, a network) needs more processes than there are cores. `--prove` also tries
    `loader=fast` and other numbers of processes, and keeps the fastest. A loader that already has processes needs more
    of them, or a dataset that does less work per sample (decode once, and keep the result). If the script reads from a
    `paceline.data` pipeline, the finding names the stage that is the bottleneck, and its maximum throughput.
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
        if evidence.first_facts is not None and evidence.first_facts.loading:
            figures.append(Figure("share of loading that computes", _computing(evidence)))
    slowest = _slowest_stage(evidence)
    if slowest is not None:
        figures.append(Figure("the pipeline's bottleneck", slowest.name))
        figures.append(Figure("maximum throughput of that stage", slowest.capacity, "/s"))
        figures.append(Figure("where that stage runs", _place(slowest)))
    finding = Finding(
        rule="input_bound",
        title=f"{percent(waiting / step)} of a step is waiting for input",
        evidence=figures,
        advice="Do less work per sample: decode once and keep the result, or keep the dataset in memory",
    )
    if slowest is not None:
        _advise_on_stage(finding, evidence, slowest)
    elif loader is None:
        finding.advice = "Load ahead: DataLoader(…, num_workers=N, pin_memory=True), or keep the data on the device"
        finding.predicted_gain = _gain(evidence, REMAINS * waiting)
        finding.how = "all but a tenth of loading is hidden"
    elif loader.processes:
        needed = math.ceil(loader.processes * step / max(step - waiting, 1e-9))
        finding.predicted_gain = _gain(evidence, _wait_for_cores(evidence, waiting))
        finding.how = "with enough processes no step waits"
        finding.advice = f"More loader processes: DataLoader(…, num_workers={needed}), or do less work per sample"
    elif loader.tensors and _fits(evidence, loader.bytes) and not {"resident", "loader"} & evidence.mods:
        finding.mod, finding.how = "resident", "a batch is one gather: a tenth of the time, and no copy"
        copies = number(pageable_copies(evidence)["total"].sum()) if evidence.clock is not None else 0.0
        finding.predicted_gain = _gain(evidence, REMAINS * waiting, copies=copies)
        finding.advice = f"{command('resident')} ({size(loader.bytes)})"
    elif not {"resident", "loader"} & evidence.mods:
        mod = f"loader={processes_for(evidence)}"
        if gain_of_processes(evidence) > WORTH:
            finding.mod, finding.how = mod, "loaded while a step computes, in N processes"
            finding.predicted_gain = _gain(evidence, _left(evidence))
            finding.advice = command(mod)
            finding.others = _other_mods(evidence, mod)
            if _loading_waits(evidence) and processes_for(evidence) > evidence.cores:
                finding.advice += " — loading mostly waits, and needs more processes than cores"
    return finding


def _slowest_stage(evidence: Evidence) -> StageReport | None:
    """The pipeline's bottleneck, if steps wait for the pipeline: a script may also load with a DataLoader."""
    pipeline, steps = evidence.pipeline, evidence.tables.steps
    if pipeline is None:
        return None
    own = number(steps.group_by("rank").agg(pl.col("data").sum())["data"].min()) if steps.height else 0.0
    return pipeline.slowest_stage if pipeline.waited * pipeline.seconds >= MOSTLY * own else None


def _place(stage: StageReport) -> str:
    return stage.where if stage.parallel < 2 else f"{stage.parallel} {stage.where}"


def _advise_on_stage(finding: Finding, evidence: Evidence, slowest: StageReport) -> None:
    """Fills in the advice for the stage of a pipeline that steps wait for."""
    assert evidence.pipeline is not None
    ahead = any(stage.where != "here" for stage in evidence.pipeline.stages)
    if not ahead:
        waiting = _waiting(evidence)
        left = max(waiting - (evidence.step - waiting), _wait_for_cores(evidence, waiting), 0.0)
        finding.predicted_gain, finding.how = _gain(evidence, left), "batches are made while a step computes"
        finding.advice = f"Run {slowest.name} while a step computes: end the pipeline with .prefetch()"
    elif slowest.name.startswith(READS):
        finding.advice = f"Read more files at a time in {slowest.name}: parallel=N, or pack fewer, larger files"
    elif slowest.busy < BUSY:
        finding.advice = f"{slowest.name} waits more than it computes, for a disk or for cores: try parallel=N"
    else:
        finding.advice = f"Do less in {slowest.name}: keep its results with .cache(), or reduce its work"


def _waiting(evidence: Evidence) -> float:
    """Seconds per step of waiting for input. With a device, its idle time; else the least of all workers: if one worker
    waits alone, it is slow by itself, which is another finding."""
    if evidence.clock is not None:
        return evidence.clock.input
    split = evidence.settled.filter("split") if evidence.settled.height else evidence.settled
    by_rank = split.group_by("rank").agg(pl.col("data").mean())["data"].min() if split.height else None
    # A mean, while the step time is a median: a few long waits must not exceed a whole step.
    return min(number(by_rank), evidence.step) if by_rank is not None else evidence.parts["data"]


def _gain(evidence: Evidence, left: float, copies: float = 0.0) -> float:
    """The gain if only `left` seconds of waiting remain, and these `copies` are saved."""
    waiting = _waiting(evidence)
    if evidence.clock is not None:
        return evidence.clock.gain(input=waiting - left, device=copies, launching=copies)
    return evidence.step / (evidence.step - waiting + left)


def pageable_copies(evidence: Evidence) -> pl.DataFrame:
    """Copies to the device from memory that is not pinned, among `evidence.kernels`: the host waits for them."""
    return evidence.kernels.filter((pl.col("kind") == "copy") & pl.col("name").str.contains(PAGEABLE))


def processes_for(evidence: Evidence) -> int:
    """The number of loader processes that keep up with a step, limited by the cores."""
    waiting = _waiting(evidence)
    rest = max(evidence.step - waiting, 1e-9)
    cores = max(evidence.cores, 2)
    most = max(cores // 2, 1) if evidence.clock is None else max(cores - evidence.workers, 1)
    if _loading_waits(evidence):
        most = MOST_PER_CORE * cores
    return max(1, min(math.ceil(waiting * HANDED_OVER / rest * SPARE), most))


def _computing(evidence: Evidence) -> float:
    """The share of the time of making batches in which the script's thread computes."""
    facts = evidence.first_facts
    return min(facts.loading_cpu / facts.loading, 1.0) if facts is not None and facts.loading > 0 else 1.0


def _loading_waits(evidence: Evidence) -> bool:
    """Whether the script's own thread makes the batches, and mostly waits meanwhile."""
    return evidence.loader is not None and not evidence.loader.processes and _computing(evidence) < WAITS


def _other_mods(evidence: Evidence, mod: str) -> list[str]:
    """What else may load fast enough: paceline's own loader, on one worker, and other numbers of processes."""
    cores = max(evidence.cores, 2)
    numbers = [cores, MOST_PER_CORE * cores] if _loading_waits(evidence) else [max(cores // 2, 1), cores]
    found = [*(["loader=fast"] if evidence.workers == 1 else []), *(f"loader={number}" for number in numbers)]
    return [other for other in dict.fromkeys(found) if other != mod]


def gain_of_processes(evidence: Evidence) -> float:
    """The gain of loading in that many processes instead of none."""
    return _gain(evidence, _left(evidence))


def _left(evidence: Evidence) -> float:
    """Seconds of waiting that remain with that many processes."""
    waiting = _waiting(evidence)
    loaded = waiting * HANDED_OVER / processes_for(evidence)
    return max(loaded - (evidence.step - waiting), _wait_for_cores(evidence, waiting), 0.0)


def _wait_for_cores(evidence: Evidence, waiting: float) -> float:
    """Seconds of waiting that remain because the cores are busy: loading ahead still needs CPU time."""
    if not evidence.cores or not evidence.worker_samples.height:
        return 0.0
    used = float(evidence.worker_samples.group_by("rank").mean()["cpu"].sum())  # cores, of all workers
    busy = min(used / evidence.cores, 1.0) * evidence.step
    return max(busy - (evidence.step - waiting), 0.0)


def _fits(evidence: Evidence, count: int) -> bool:
    """Whether the dataset fits into the memory of a single GPU. In other cases it stays on the host, where it fits."""
    if not evidence.memory_total or evidence.workers > 1:
        return True
    return count < FITS * (evidence.memory_total - evidence.memory)
