"""Steps wait for their input."""

from __future__ import annotations

import math

import polars as pl

from paceline.advise.evidence import Evidence, number
from paceline.advise.finding import Figure, Finding
from paceline.advise.wording import command, percent, size

SHARE = 0.05  # of a step: what the field calls input-bound; with less there is little to gain
REMAINS = 0.1  # of loading, where a batch is one gather
HANDED_OVER = 1.3  # times as long: a sample that another process loads is also packed, sent and unpacked
SPARE = 2.0  # times as many loader processes as would just do: loading varies, and a late batch is late for all
FITS = 0.5  # of the device's free memory, that a resident dataset may take
WORTH = 1.02  # a gain below that is none


def find(evidence: Evidence) -> Finding | None:
    """Steps wait for their loader, and the device, where there is one, has nothing to do meanwhile.

    Mended by `resident` where the dataset is tensors that fit into memory, else by `loader=N`, which loads in processes
    of its own and pins memory on a GPU. Predicted: a resident batch takes a tenth of the time; N processes load in
    their share of it, while a step computes, as far as there are cores for it. A loader that has processes already
    needs more of them, or a dataset that does less for a sample (decode once, and keep it).
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
    finding = Finding(
        rule="input_bound",
        title=f"{percent(waiting / step)} of a step is waiting for input",
        evidence=figures,
        advice="Do less for a sample: decode once and keep the result, or keep the dataset in memory",
    )
    if loader is None:
        finding.advice = "Load ahead: DataLoader(…, num_workers=N, pin_memory=True), or keep the data on the device"
        finding.predicted_gain = _gain(evidence, REMAINS * waiting)
        finding.how = "loading is hidden but for a tenth"
    elif loader.processes:
        needed = math.ceil(loader.processes * step / max(step - waiting, 1e-9))
        finding.predicted_gain = _gain(evidence, _bound(evidence, waiting))
        finding.how = "with as many processes as needed nothing waits"
        finding.advice = f"More loader processes: DataLoader(…, num_workers={needed}), or do less for a sample"
    elif loader.tensors and _fits(evidence, loader.bytes) and not {"resident", "loader"} & evidence.mods:
        _mend(finding, evidence, "resident", REMAINS * waiting, "a batch is one gather: a tenth of the time")
        finding.advice = f"{command('resident')} ({size(loader.bytes)})"
    elif not {"resident", "loader"} & evidence.mods:
        mod = f"loader={processes_for(evidence)}"
        if gain_of_processes(evidence) > WORTH:
            _mend(finding, evidence, mod, _left(evidence), "loaded while a step computes, in N processes")
            finding.advice = command(mod)
    return finding


def _mend(finding: Finding, evidence: Evidence, mod: str, left: float, how: str) -> None:
    finding.mod, finding.predicted_gain, finding.how = mod, _gain(evidence, left), how


def _waiting(evidence: Evidence) -> float:
    """Where there is a device, what it idled for; else the least that any worker waits: one that waits alone is slow by
    itself, which is another finding."""
    if evidence.clock is not None:
        return evidence.clock.input
    split = evidence.settled.filter("split") if evidence.settled.height else evidence.settled
    by_rank = split.group_by("rank").agg(pl.col("data").mean())["data"].min() if split.height else None
    return number(by_rank) if by_rank is not None else evidence.parts["data"]


def _gain(evidence: Evidence, left: float) -> float:
    """Where only `left` seconds of waiting remain."""
    waiting = _waiting(evidence)
    if evidence.clock is not None:
        return evidence.clock.gain(input=waiting - left)
    return evidence.step / (evidence.step - waiting + left)


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
