"""Batches are copied from memory that is not pinned."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.advise.rules.input_bound import gain_of_processes, pageable_copies, processes_for

SHARE = 0.02  # share of a step: with less there is nothing to gain
PINNED = 25e9  # bytes per second from pinned memory: PCIe 4; newer slots are twice as fast


def find(evidence: Evidence) -> Finding | None:
    """Batches are copied to the device from memory that is not pinned: the driver copies them twice, and the host
    waits.

    Fixed by `loader=N`, which pins memory and lets copies overlap with the host's work, if the loader has no processes;
    else by hand. Predicted: the same bytes at 25 GB/s, for the device and for the host, and with `loader=N` the gain of
    loading in processes.
    """
    clock = evidence.clock
    if clock is None or {"loader", "resident"} & evidence.mods:
        return None
    copies = pageable_copies(evidence)
    time, sent = float(copies["total"].sum()), float(copies["bytes"].fill_null(0).sum())
    if time < SHARE * clock.wall:
        return None
    saved = max(time - sent / PINNED, 0.0)
    loader = evidence.loader
    by_mod = loader is not None and not loader.processes and not loader.pinned
    mod = f"loader={processes_for(evidence)}" if by_mod else ""
    hand = "DataLoader(…, pin_memory=True), and .to(device, non_blocking=True)"
    return Finding(
        rule="pageable_copies",
        title=f"{percent(time / clock.wall)} of a step is copies from memory that is not pinned",
        evidence=[
            Figure("such copies", float(copies["calls"].sum()), "per step"),
            Figure("time in them", time, "s"),
            Figure("copied", sent, "bytes per step"),
            Figure("step", clock.wall, "s"),
        ],
        mod=mod,
        predicted_gain=clock.gain(device=saved, launching=saved) * (gain_of_processes(evidence) if mod else 1.0),
        how="the same bytes at 25 GB/s" + (", and the gain of loading in processes" if mod else ""),
        advice=f"{command(mod)} — by hand: {hand}" if mod else hand,
    )
