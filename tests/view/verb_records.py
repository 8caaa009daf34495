"""One record of each verb, with known numbers, for the tests that walk over all pages."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import view_records
from cuda_trace import Machine
from view_records import BEGUN, make_bandwidth, make_run, make_scale, make_series, make_sweep, make_tune

from paceline.plan.cluster import PRESETS
from paceline.plan.fabric import Fabric
from paceline.plan.plan import make_plan as plan
from paceline.plan.workload import Point, Workload
from paceline.record import Outcome, Run, Step, WorkerInfo, write_run
from paceline.record.account import Account, Part
from paceline.record.logged import Logged
from paceline.record.noise import Noise
from paceline.record.pipelines import PipelineReport, Reported, StageReport
from paceline.record.schema import FailureKind
from paceline.record.servers import ServerReport
from paceline.record.timeline import TimelineWriter
from paceline.trials.converge.series import Row, Sharp, Spread, Verdict
from paceline.trials.core.result import Status
from paceline.trials.fit.search import Row as FitRow
from paceline.trials.fit.search import Verdict as FitVerdict

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 15, in <module>
    step(model, batch)
  File "train.py", line 7, in step
    return model(x).missing
           ^^^^^^^^^^^^^^^^
AttributeError: 'Tensor' object has no attribute 'missing'"""


def make_each_verb(root: Path) -> dict[str, str]:
    """Names of the records, by verb; also those of runs that recorded something special."""
    made = {
        "run": on_cpu(make_run(root / "run", ranks=2, steps=60)),
        "profile": make_run(root / "profile", ranks=2, steps=60, traced=True),
        "scale": make_scale(root / "scale"),
        "sweep": make_sweep(root / "sweep"),
        "fit": make_fit(root / "fit"),
        "tune": make_tune(root / "tune"),
        "converge": make_converge(root / "converge"),
        "bandwidth": make_bandwidth(root / "bandwidth"),
        "plan": make_plan(root / "plan"),
        "cpu": make_cpu_profile(root / "cpu"),
        "pair": make_pair(root / "pair"),
        "failed": make_failed(root / "failed"),
        "pipelines": make_pipelines(root / "pipelines"),
        "noise": make_noise(root / "noise"),
        "servers": make_servers(root / "servers"),
        "killed": make_killed(root / "killed"),
        "timed": make_timed(root / "timed"),
    }
    return {name: folder.name for name, folder in made.items()}


def on_cpu(folder: Path) -> Path:
    """The record as a run without GPUs leaves it."""
    run = json.loads((folder / "run.json").read_text())
    for worker in run["workers"]:
        worker["gpus"] = []
    run["topology"]["gpus"] = []
    (folder / "run.json").write_text(json.dumps(run))
    samples = folder / "devices.jsonl"
    if samples.exists():
        lines = [json.loads(line) | {"gpus": []} for line in samples.read_text().splitlines()]
        samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def make_cpu_profile(folder: Path) -> Path:
    """A profile without a device."""
    on_cpu(make_run(folder, ranks=1, steps=60, traced=True))
    machine = Machine(0, 1)
    for _ in range(3):
        with machine.step():
            with machine.annotation("paceline.forward"), machine.op("aten::linear", 400_000), machine.op("aten::addmm"):
                machine.work(900_000)
            with machine.annotation("paceline.backward"), machine.op("aten::mm", 700_000):
                machine.work(100_000)
    machine.write(folder / "trace.rank0.json.gz")
    return folder


def make_failed(folder: Path) -> Path:
    message = f"Worker 0 on node1 failed:\n{TRACEBACK}\nIts log: {folder}/log.rank0.txt"
    outcome = Outcome(
        exit_code=1, seconds=20.0, steps=8, failed_rank=0, kind=FailureKind.RAISED, error="AttributeError",
        cause="AttributeError: 'Tensor' object has no attribute 'missing'", message=message,
    )  # fmt: skip
    return on_cpu(make_run(folder, ranks=2, steps=8, outcome=outcome))


CURVES = {"one worker": (0.62, 0.70, 0.74), "naive": (0.40, 0.52, 0.55), "lamb": (0.58, 0.69, 0.73)}


def make_converge(folder: Path) -> Path:
    """One worker, and two techniques on eight emulated workers; two seeds of each, one of which diverged."""
    rows = []
    for number, (technique, curve) in enumerate(CURVES.items()):
        curves: list[list[tuple[float | None, float | None]]] = [
            [(10.0 * epoch, value + 0.01 * seed) for epoch, value in enumerate(curve, 1)] for seed in range(2)
        ]
        sharp = Sharp(
            eigenvalue=4.0 + number, settled=number != 1, loss=0.5, rise=0.02 * number, radius=0.05,
            line=[(place / 4, 0.4 + number * place / 40) for place in range(-1, 6)] if number else [],
        )  # fmt: skip
        rows.append(
            Row(
                workers=1 if technique == "one worker" else 8, technique=technique,
                mods=[] if technique == "one worker" else ["emulate=8"] + ["optimizer=lamb"] * (technique == "lamb"),
                accuracy=Spread(mean=curve[-1] + 0.005, low=curve[-1], high=curve[-1] + 0.01, seeds=2),
                samples_per_s=800.0, diverged=17 if technique == "naive" else None, steps=60, curves=curves,
                epochs_to_target=3.0 if technique == "one worker" else None, sharpness=sharp,
            )
        )  # fmt: skip
    verdict = Verdict(workers=8, seeds=2, target=0.74, rows=rows, chosen="lamb")
    make_series(folder, "converge", msgspec.to_builtins(verdict))
    for number, technique in enumerate(CURVES):
        for seed in range(2):
            trial = folder / "trials" / f"{technique.replace(' ', '')}.seed{seed}"
            make_trial(trial, "converge", rows[number].mods, seed=seed, decay=20.0 + 10 * number)
    return folder


def make_plan(folder: Path) -> Path:
    """A plan for four hosts, with a knee."""
    points = tuple(Point(rows=r, forward=0.002 * r, backward=0.004 * r, update=0.001, data=0.001) for r in (16, 64))
    ready = ((1e6, 0.0, 0.5), (4e6, 0.5, 1.0))
    work = Workload(name="train.py", batch=64, points=points, ready=ready, critical=500.0, unknown=("the weather",))
    made = plan(
        work, Fabric(PRESETS["dgx1"]), numbers=[1, 2, 8], strategy="mirrored", weak=True, speed=10.0, error=0.25
    )
    return make_series(folder, "plan", msgspec.to_builtins(made))


def make_trial(folder: Path, verb: str, mods: list[str], *, seed: int, decay: float) -> None:
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    steps = [
        Step(step=n, at=BEGUN + n, samples=256, total=0.2, data=0.01, forward=0.06, backward=0.1, communication=0.02,
             optimizer=0.01, loss=2.3 * math.exp(-n / decay) + 0.2 + chance.uniform(0, 0.1))
        for n in range(1, 61)
    ]  # fmt: skip
    view_records.write_steps(folder, 0, steps)
    (folder / "log.rank0.txt").write_text("epoch 1\n")
    notices = ["large_batch=auto: the noise scale is about 407 samples, the batch has 256 samples: …"]
    write_run(
        folder,
        Run(paceline="0.1.0", verb=verb, script="train.py", arguments=[], settings={"workers": 1}, mods=mods,
            started=BEGUN + seed, workers=[WorkerInfo(rank=0, host="node1", pid=1, cores=[0], threads=1)],
            outcome=Outcome(exit_code=0, seconds=12.0, steps=60, notices=notices if "optimizer=lamb" in mods else [])),
    )  # fmt: skip


def make_pair(folder: Path) -> Path:
    """A `bandwidth` between two workers, as the verb writes it: its settings are one plan per trial."""
    make_bandwidth(folder)
    verdict = json.loads((folder / "verdict.json").read_text())
    verdict["workers"], verdict["flags"] = 2, []
    verdict["pairs"] = [pair for pair in verdict["pairs"] if (pair["a"], pair["b"]) == (0, 1)]
    (folder / "verdict.json").write_text(json.dumps(verdict))
    run = json.loads((folder / "run.json").read_text())
    run |= {"script": "paceline.comm.measuring"}
    run["settings"] = {"workers": {"workers": 2, "ops": ["all_reduce"], "sizes": [1024], "rounds": 3}}
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def make_pipelines(folder: Path) -> Path:
    """Two pipelines on two workers: the first keeps the script waiting, and lost samples."""
    on_cpu(make_run(folder, ranks=2, steps=40))
    slow = StageReport(
        name="map decode · batch 32", where="threads", parallel=4, results=64, seconds=0.0301, busy=0.104,
        capacity=99.7, ready=2, room=8, notes=["threads: 4 keep up"],
    )  # fmt: skip
    ahead = StageReport(
        name="prefetch", where="thread", parallel=1, results=64, seconds=0.0, busy=0.0, capacity=0, ready=0, room=2
    )
    quick = StageReport(name="batch 64", where="here", parallel=0, results=8, seconds=8e-5, busy=1.0, capacity=11_875.0)
    reports = (
        PipelineReport(stages=[slow, ahead], results=64, waited=0.41, lost=24, seconds=2.0, slowest=slow.name,
                       bottleneck="map decode · batch 32, 99.7 results a second at most"),
        PipelineReport(stages=[quick], results=8, waited=0.018, lost=0, seconds=0.1,
                       bottleneck="the consumer; the pipeline keeps up"),
    )  # fmt: skip
    for rank in range(2):
        lines = [
            Reported(pipeline=number, title="arrays", step=40, at=BEGUN + 9, report=report)
            for number, report in enumerate(reports)
        ]
        text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        (folder / f"pipelines.rank{rank}.jsonl").write_bytes(text)
    return folder


def make_noise(folder: Path) -> Path:
    """A run with --noise-scale and paceline.log: the noise scale is 512 samples."""
    on_cpu(make_run(folder, ranks=2, steps=40))
    signal, spread = 1.0, 512.0
    for rank in range(2):
        lines = [
            Noise(step=n, small=128, large=256, of_small=signal + spread / 128, of_large=signal + spread / 256)
            for n in range(3, 41)
        ]
        (folder / f"noise.rank{rank}.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in lines))
    path = folder / "steps.rank0.jsonl"
    steps = [json.loads(line) | {"noise": 400.0 + n} for n, line in enumerate(path.read_text().splitlines())]
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    told = [Logged(step=10 * n, at=BEGUN + n, numbers={"accuracy": 0.5 + n / 10}) for n in range(1, 5)]
    (folder / "logged.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in told))
    return folder


def make_servers(folder: Path) -> Path:
    on_cpu(make_run(folder, ranks=2, steps=40))
    report: dict[str, Any] = {"server": 0, "bytes": 4096, "updates": 80, "staleness": {"0": 30, "1": 50}}
    (folder / "server.0.json").write_bytes(msgspec.json.encode(msgspec.convert(report, ServerReport, strict=False)))
    return folder


def make_fit(folder: Path) -> Path:
    """A GPT that dies as it is, and fits with recomputed blocks."""
    gib = 1 << 30
    account = Account(
        device="cuda:0",
        peak=15 * gib,
        step=1,
        phase="forward",
        allocated=15 * gib,
        reserved=15 * gib,
        total=16 * gib,
        parts=[
            Part("activations", 11 * gib, 120, "blocks.*.mlp", "/home/ada/train.py:49"),
            Part("outputs and losses", 3 * gib, 4, "", "/home/ada/train.py:80"),
            Part("weights", gib, 244),
        ],
        failed="/home/ada/train.py:68",
        module="GPT",
        asked=gib // 2,
    )
    rows = [
        FitRow(change=[], status=Status.MEMORY, message="out of memory: tried to allocate 512 MiB"),
        FitRow(change=[], limited=False, fits=True, memory=22 * gib, samples_per_s=19.2, low=19.0, high=19.4, steps=12),
        FitRow(change=["accumulate=2"], status=Status.UNSUPPORTED, message="GPT cannot be computed in micro-batches"),
        FitRow(
            change=["checkpointing"],
            fits=True,
            memory=11 * gib,
            samples_per_s=15.9,
            low=15.5,
            high=16.1,
            steps=12,
            away=8.7e-8,
        ),
    ]
    verdict = FitVerdict(limit=16 * gib, account=account, rows=rows, chosen=3, compared="without the limit")
    make_series(folder, "fit", msgspec.to_builtins(verdict))
    return folder


def make_killed(folder: Path) -> Path:
    """A series whose launcher was killed: no outcome and no verdict, but a trial."""
    make_series(folder, "sweep", {})
    (folder / "verdict.json").unlink()
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"outcome": None}))
    make_trial(folder / "trials" / "batch=x2.r1", "sweep", ["batch=x2:none"], seed=1, decay=20.0)
    os.utime(folder / "trials" / "batch=x2.r1" / "run.json", (BEGUN, BEGUN))  # nothing was written since
    return folder


def make_timed(folder: Path) -> Path:
    """A run with --timeline: the phases of each step."""
    on_cpu(make_run(folder, ranks=1, steps=5))
    writer = TimelineWriter(folder, 0)
    writer._zero = 0.0  # times below are of the wall
    for line in (folder / "steps.rank0.jsonl").read_text().splitlines():
        step = json.loads(line)
        at = step["at"] - step["total"]
        for phase in ("data", "forward", "backward", "communication", "optimizer"):
            writer.add("phases", phase, at, at + step[phase])
            at += step[phase]
    writer.flush()
    return folder
