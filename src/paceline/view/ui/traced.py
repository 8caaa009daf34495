"""What the pages over traces share: the profile of a record, made once, and the figures above each table."""

from __future__ import annotations

from paceline.advise.profile import Profile, summarize
from paceline.errors import RecordError, UsageError
from paceline.tables.timeline import CAUSES
from paceline.units import percent, seconds
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, SplitBlock, Tile, Tiles
from paceline.view.ui.grid import Column

STEP = "Sum over the traced steps of all ranks, by the number of traced steps: a step of one rank."
HOST = "Time on the host, from the start to the end of the call, as torch's profiler recorded it"
DEVICE = "Time of the kernels and copies that were launched for it, as the device's own clock has it"
IDLE = {
    "input": "the script waited for its loader",
    "peer": "the host waited for other workers",
    "synchronisation": "the host had waited for the device, and had then to begin anew",
    "host": "the host was late",
    "queue": "launched, and not begun yet",
}


def profile_of(record: Opened) -> Profile:
    """The same figures as `paceline profile` prints. RecordError where no step was traced."""

    def make() -> Profile:
        try:
            return summarize(record.tables)
        except UsageError as error:
            raise RecordError(error.message, advice=error.advice) from error

    return record.once("Summarising the traces", make)


def head(record: Opened) -> list[Block]:
    """How much was traced, and what the device did meanwhile."""
    told = profile_of(record)
    device = told.device or {}
    busy = sum(device.get(part, 0.0) for part in ("compute", "communication", "copy"))
    tiles = [
        Tile(
            label="traced",
            value=f"{told.steps} steps",
            how="Steps in the trace of each rank, after warm-up.",
            detail=f"{told.first} to {told.last}, {told.ranks} rank{'' if told.ranks == 1 else 's'}",
        ),
        Tile(label="a step", value=seconds(told.step), how="Mean wall time of the traced steps, over ranks."),
    ]
    if told.device is not None:
        tiles += [
            Tile(
                label="device busy",
                value=percent(busy / told.step if told.step else 0.0),
                how="Share of the step in which a kernel or a copy was under way, on any stream.",
            ),
            Tile(
                label="on tensor cores",
                value=percent(told.tensor_cores),
                how="Share of the device's compute time in kernels whose names say that they use tensor cores.",
            ),
        ]
    return [Tiles(tiles)]


def device_split(record: Opened) -> list[Block]:
    told = profile_of(record)
    if told.device is None:
        return []
    colours = {"compute": "backward", "communication": "communication", "copy": "data"}
    greys = dict(
        zip((f"idle_{cause}" for cause in CAUSES), ("evaluation", "optimizer", "other", "idle", "forward"), strict=True)
    )
    parts = [
        (part.replace("idle_", "idle: "), told.device[part], {**colours, **greys}[part])
        for part in (*colours, *greys)
        if told.device[part] > 0
    ]
    reasons = "; ".join(f"{cause}: {why}" for cause, why in IDLE.items())
    return [
        SplitBlock(
            name="device-split",
            title="What the device did in a step",
            how="Each moment counts once: compute, else communication, else copy, else idle, by cause. "
            f"Mean over traced steps and ranks. Idle by cause: {reasons}.",
            parts=parts,
            total=told.step,
        )
    ]


def name_column(title: str, key: str = "name") -> Column:
    return Column(key=key, title=title, how="As the trace names it.")
