"""The report of `profile`: where a traced step's time went, by phase, device, op, kernel and line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.record.phases import CHECK, EVALUATION, PHASES
from paceline.reports.figure_text import slowest
from paceline.reports.report import Column, Report, Sentence, Table
from paceline.reports.wording import BAR, bar
from paceline.units import count, percent, rate, seconds

if TYPE_CHECKING:
    from paceline.advise.profile import Profile

SHOWN = 0.01  # of a step: shorter checks are left out
STEP = "Mean per step and rank, over all traced steps."
HOST = "Time on the host, from the start to the end of the call, as torch's profiler recorded it"
SELF = "Time of kernels and copies, by the device's clock, that were launched by the op itself."
NESTED = "Time of kernels and copies, by the device's clock, that were launched by the op and its nested ops."
KERNEL = "From the start to the end of the kernel, by the device's clock."
DEVICE = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copies",
    "idle_input": "idle: waiting for input",
    "idle_peer": "idle: waiting for a peer",
    "idle_synchronisation": "idle: after the host waited",
    "idle_host": "idle: the host was late",
    "idle_queue": "idle: launched, not started",
}
SHARE = "Share of the self time of all ops: on the device if it ran anything, else on the host."
PRODUCT = "Whether the op could use tensor cores, derived from its name."
ON_CORES = "Share of the op's device time in kernels that use tensor cores, derived from their names."
USES_CORES = "Whether the kernel uses tensor cores, derived from its name."
WAITED = "Time in which the call blocked the host to wait for the device; without a device, the duration of the call."
# Each op, type of op, or op and its shapes.
FIGURES = (
    Column("calls", "calls", f"Number of calls. {STEP}", "count"),
    Column("host_self", "host self", f"{HOST}, without nested ops. {STEP}", "seconds", short="host"),
    Column("host_total", "host total", f"{HOST}, with nested ops. {STEP}", "seconds", short="host, all"),
    Column(
        "kernels", "kernels", f"Kernels and copies launched by the op itself. {STEP}", "count", on="page", optional=True
    ),
    Column("device_self", "device self", f"{SELF} {STEP}", "seconds", short="device", optional=True),
    Column("device_total", "device total", f"{NESTED} {STEP}", "seconds", short="device, all", optional=True),
    Column("share", "share", SHARE, "share", bar=True, on="page"),
    Column("eligible", "matrix product", PRODUCT, "flag", on="page"),
    Column("tensor_cores", "on tensor cores", ON_CORES, "percent", short="tensor cores"),
)
ON_DEVICES = ("eligible", "tensor_cores")  # figures that say nothing about a run without a device
KIND = Column("kind", "kind", "Compute, communication or copy, derived from the name.")
CALLS = Column("calls", "calls", f"Number of runs. {STEP}", "count")
TOTAL = Column("total", "time", f"{KERNEL} {STEP}", "seconds")
TENSOR = Column("tensor_cores", "tensor cores", USES_CORES, "flag", on="page")


def report(told: Profile, *, top: int) -> Report:
    """For a terminal, with `top` rows of each table."""
    which = f"step {told.first}" if told.first == told.last else f"steps {told.first} to {told.last}"
    head, traced = [count(told.ranks, "worker")], f"{which} traced" if told.last else "one trace"
    if told.figures.counted:
        head.append(f"{seconds(told.figures.step_time)} a step")
        head += [f"{rate(told.figures.samples_per_s)} samples/s"] if told.figures.samples_per_s else []
        head.append(f"{traced}: {seconds(told.step)} a step under the profiler")
    else:
        head += [traced, f"{seconds(told.step)} a step"]
    late = [Sentence(figure.said, figure.tone) for figure in slowest(told.figures)]
    times = time_table({"total": told.step, **told.host}, "where a traced step's time went", beside=False)
    tables = [ops_table(told, told.ops[:top])]
    tables += [kernels_table(told.kernels[:top])] if told.kernels else []
    tables += [waits_table(told, told.waits[:top])] if told.waits else []
    return Report(lead=[Sentence(" · ".join(head), "strong"), *late], tables=[times, *_device(told), *tables])


def name_column(title: str, key: str = "name") -> Column:
    return Column(key, title, "As the trace names it.", cut="end")


def figures_of(told: Profile) -> list[Column]:
    """The columns of ops that say something about this profile."""
    return [column for column in FIGURES if told.device is not None or column.key not in ON_DEVICES]


def ops_table(told: Profile, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = (name_column("op"), *figures_of(told))
    return Table(name="ops", title=f"{len(rows):,} ops", columns=columns, rows=rows, empty="No op was traced.")


def kernels_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    mean = Column("mean", "each", f"Mean of one call. {KERNEL}", "seconds")
    share = Column("share", "share", "Share of the time of all kernels and copies.", "share", bar=True)
    return Table(
        name="kernels",
        title=f"{len(rows):,} kernels and copies",
        columns=(name_column("kernel"), KIND, CALLS, TOTAL, mean, share, TENSOR),
        rows=rows,
        empty="No kernel was traced: the run had no device.",
    )


def waits_table(told: Profile, rows: Sequence[Mapping[str, Any]]) -> Table:
    waits = "the host waits for the device" if told.device is not None else "values are read"
    places = [f"{row['file']}:{row['line']}" if row["file"] else "(unknown line)" for row in rows]
    return Table(
        name="waits",
        title="Lines that wait",
        about="A call that reads a tensor's value (item, cpu, print …) blocks the host until the device is done.",
        columns=(
            Column("where", f"where {waits}", on="terminal", cut="start"),
            Column("file", "file", "File of the script, from the marks of the capture.", on="page"),
            Column("line", "line", "Line in that file; none if the trace does not name it.", "count", on="page"),
            Column("what", "call", "Method of the tensor; without a line, the driver call."),
            Column("calls", "calls per step", STEP, "count", short="calls"),
            Column("seconds", "waited per step", f"{WAITED} {STEP}", "seconds", short="a step"),
        ),
        rows=[{**row, "line": row["line"] or None, "where": at} for row, at in zip(rows, places, strict=True)],
        empty="No line of the script waited.",
    )


def _device(told: Profile) -> list[Table]:
    if told.device is None:
        return []
    rows = [_part(words, told.device[part], told.step) for part, words in DEVICE.items() if told.device[part]]
    used = f"{percent(told.tensor_cores, digits=0)} of compute on tensor cores"
    return [_times("what the device did", [*rows, _part("total", told.step) | {"bar": used, "total": True}])]


def time_table(
    step: Mapping[str, float | None], title: str = "where the time went", *, beside: bool = True, check: float = 0.0
) -> Table:
    """The table of where a step's time went; None: not measured. Evaluation and Paceline's own checks, of `check`
    seconds per step, are no part of a step, and stand below the total; without `beside` the total includes
    evaluation."""
    total, evaluated, rows = step["total"] or 1.0, step[EVALUATION] or 0.0, []
    for part in PHASES:
        if part != EVALUATION or (evaluated and not beside):
            rows.append(_part(part, step[part], total))
    rows.append(_part("total", step["total"] or 0.0) | {"total": True})
    if beside and evaluated:
        rows.append(_part("evaluation beside it", evaluated, total) | {"bar": ""})
    if check > SHOWN * total:
        rows.append(_part(f"{CHECK} beside it", check, total) | {"bar": ""})
    return _times(title, rows)


def _part(name: str, took: float | None, total: float = 0.0) -> dict[str, Any]:
    """A row: a part of a step, and its share, if it is one."""
    ratio = took / total if took is not None and total else 0.0
    said = "not measured" if took is None else seconds(took)
    return {
        "part": name,
        "took": said,
        "share": percent(ratio) if took is not None and total else "",
        "bar": bar(ratio * BAR),
    }


def _times(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        Column("part", title),
        Column("took", "a step", kind="number"),
        Column("share", "share", kind="number", text="share"),
        Column("bar", ""),
    )
    return Table(name="times", title=title, columns=columns, rows=rows, mark="total", good=True)
