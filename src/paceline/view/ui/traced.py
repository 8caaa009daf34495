"""Parts that the pages over traces share: the profile of a record, computed once, and the figures above each table."""

from __future__ import annotations

from paceline.advise.profile import Profile, summarize
from paceline.errors import RecordError, UsageError
from paceline.reports.report import Figure
from paceline.tables.timeline import CAUSES
from paceline.units import percent, seconds
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, SplitBlock, Tiles
from paceline.view.ui.run_parts import STEP_TIME

IDLE = {
    "input": "the script waited for its loader",
    "peer": "the host waited for other workers",
    "synchronisation": "the host had just waited for the device, so that no kernel was queued",
    "host": "the host launched the next kernel too late",
    "queue": "a kernel was launched but had not started",
}

# Waiting for input is the phase `data`; the others are no phases.
IDLE_COLOURS = {"input": "data", "peer": "python", "synchronisation": "call", "host": "op", "queue": "idle"}


def profile_of(record: Opened) -> Profile:
    """The same figures as `paceline profile` prints. Raises RecordError if no step was traced."""

    def make() -> Profile:
        try:
            return summarize(record.tables)
        except UsageError as error:
            raise RecordError(error.message, advice=error.advice) from error

    return record.once("Summarising the traces", make)


def head(record: Opened) -> list[Block]:
    """Tiles: how much was traced, and how busy the device was."""
    profile = profile_of(record)
    device = profile.device or {}
    busy = sum(device.get(part, 0.0) for part in ("compute", "communication", "copy"))
    tiles = [
        Figure(
            "traced",
            f"{profile.steps} steps",
            "Steps in the trace of each rank, after warm-up.",
            f"{profile.first} to {profile.last}, {profile.ranks} rank{'' if profile.ranks == 1 else 's'}",
        ),
        Figure(
            "traced step",
            seconds(profile.step),
            "Mean wall time of the traced steps, over ranks. The profiler makes steps longer.",
        ),
    ]
    if profile.figures.step_time:
        tiles.append(Figure("step time", seconds(profile.figures.step_time), STEP_TIME))
    if profile.device is not None:
        tiles += [
            Figure(
                "device busy",
                percent(busy / profile.step if profile.step else 0.0),
                "Share of the step in which a kernel or a copy ran, on any stream.",
            ),
            Figure(
                "on tensor cores",
                percent(profile.tensor_cores),
                "Share of the device's compute time in kernels whose names say that they use tensor cores.",
            ),
        ]
    return [Tiles(tiles)]


def device_split(record: Opened) -> list[Block]:
    profile = profile_of(record)
    if profile.device is None:
        return []
    colours = {"compute": "kernel", "communication": "communication", "copy": "copy"}
    idle_colours = {f"idle_{cause}": IDLE_COLOURS[cause] for cause in CAUSES}
    parts = [
        (part.replace("idle_", "idle: "), profile.device[part], {**colours, **idle_colours}[part])
        for part in (*colours, *idle_colours)
        if profile.device[part] > 0
    ]
    reasons = "; ".join(f"{cause}: {why}" for cause, why in IDLE.items())
    return [
        SplitBlock(
            name="device-split",
            title="What the device did in a step",
            how="Each moment counts once: compute, else communication, else copy, else idle, by cause. "
            f"Mean over traced steps and ranks. Idle by cause: {reasons}.",
            parts=parts,
            total=profile.step,
        )
    ]
