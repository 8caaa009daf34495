"""Made-up runs: traces of a GPU that is not there, step records, facts and samples whose every number is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cuda_trace import Machine

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Finding
from paceline.record import Outcome, Run, Step, StepWriter, WorkerInfo, write_run
from paceline.record.facts import Facts, facts_path
from paceline.record.samples import Sample, samples_path
from paceline.tables.trace.columns import read_trace
from paceline.tables.trace.steps import breakdown, windows

MS, US = 1_000_000, 1_000  # nanoseconds
SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_nn_align1>"
TF32 = "cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_nn>"
HALF = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"
SMALL = "void at::native::vectorized_elementwise_kernel<4, Adder>"
FLOATS = {"Input type": ["float", "float"], "Input Dims": [[64, 64], [64, 64]]}
HALVES = {"Input type": ["c10::BFloat16", "c10::BFloat16"], "Input Dims": [[64, 64], [64, 64]]}

Body = Callable[[Machine], None]


def step(number: int, seconds: float = 0.1, **parts: Any) -> Step:
    """A step of so many seconds; what `parts` leave of it is forward."""
    told: dict[str, Any] = {
        **dict.fromkeys(("data", "backward", "communication", "optimizer", "evaluation", "other"), 0.0),
        **parts,
    }
    phases = ("data", "backward", "communication", "optimizer", "evaluation", "other")
    told.setdefault("forward", max(seconds - sum(told[phase] for phase in phases), 0.0))
    return Step(step=number, at=1000.0 + number, **{"samples": 64, "loss": 1.0, "total": seconds, **told})


def trace(folder: Path, body: Body, *, rank: int = 0, world: int = 1, steps: int = 3, first: int = 1) -> Machine:
    """A trace of some steps, each of which does `body`."""
    machine = Machine(rank, world, first=first)
    for _ in range(steps):
        with machine.step():
            body(machine)
    machine.write(folder / f"trace.rank{rank}.json.gz")
    return machine


def evidence(
    folder: Path,
    body: Body | None = None,
    *,
    steps: Sequence[Sequence[Step]] | None = None,
    facts: Facts | None = None,
    samples: Sequence[Sample] = (),
    mods: Sequence[str] = (),
    workers: int = 1,
    threads: int = 1,
    topology: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    first: int = 1,
) -> Evidence:
    """A record of it, in which step `first` is the first that was traced. Without `steps` they are as long as those of
    the trace: as if the profiler cost nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    length, data = 0.1, 0.0
    if body is not None:
        for rank in range(workers):
            trace(folder, body, rank=rank, world=workers, first=first)
        seen = read_trace(folder / "trace.rank0.json.gz")
        length = float((windows(seen)["end"] - windows(seen)["start"]).mean()) / 1e9  # type: ignore[arg-type]
        data = float(breakdown(seen)["data"].mean())  # type: ignore[arg-type]
    if steps is None:
        steps = [[step(100 + k, length, data=data) for k in range(20)] for _ in range(workers)]
    for rank, mine in enumerate(steps):
        writer = StepWriter(folder / f"steps.rank{rank}.jsonl")
        for one in mine:
            writer.append(one)
        writer.close()
        if facts is not None:
            facts_path(folder, rank).write_bytes(msgspec.json.encode(facts))
    if samples:
        samples_path(folder).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in samples))
    known = topology if topology is not None else {"cores": [{"id": 0}, {"id": 1}], "gpus": []}
    write_run(
        folder,
        Run(
            paceline="0",
            verb="profile",
            script="train.py",
            arguments=[],
            settings=settings or {},
            mods=list(mods),
            topology=known,
            workers=[WorkerInfo(rank=r, host="here", pid=1, cores=[r], threads=threads) for r in range(len(steps))],
            outcome=Outcome(exit_code=0, seconds=10.0, view="batch", steps=20),
        ),
    )
    return Evidence.of_record(folder)


def figures(finding: Finding) -> dict[str, Any]:
    """The evidence by name."""
    return {figure.name: figure.value for figure in finding.evidence}


# -- steps that machines make ------------------------------------------------------------------------------------------


def products(machine: Machine, kernel: str = SGEMM, each: int = 1 * MS, count: int = 10, **args: Any) -> None:
    """Products of matrices, launched ahead of the device."""
    for _ in range(count):
        with machine.op("aten::mm", 2 * US, **(args or FLOATS)):
            machine.launch(kernel, each)


def small(machine: Machine, count: int = 200, each: int = 2 * US, host: int = 20 * US) -> None:
    """Many small kernels, of ops that take the host longer than the device."""
    for _ in range(count):
        with machine.op("aten::add", host):
            machine.launch(SMALL, each)


def loading(machine: Machine, nanoseconds: int) -> None:
    with machine.annotation("paceline.data"):
        machine.work(nanoseconds)


def reading(machine: Machine, line: str = "/home/me/train.py:66", what: str = "item") -> None:
    """A line of the script reads a value."""
    with machine.annotation(f"paceline.line#{line}#{what}"), machine.op("aten::item", 2 * US):
        machine.copy("DtoH (Device -> Pageable)", 4, 1 * US)
        machine.synchronize("cudaStreamSynchronize")
