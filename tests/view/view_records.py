"""A folder of made-up records with something for every page: numbers that are known, and names that are hostile."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tables"))

from cuda_trace import Machine

from paceline.advise.finding import Figure, Finding, write_findings
from paceline.record import Outcome, Run, Step, StepWriter, WorkerInfo, write_run
from paceline.record.samples import GpuSample, Sample, WorkerSample

TOKEN = "a-token-for-the-tests-of-the-view"
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
TRAIN = "2026-11-15T10-22-31-train"
OTHER = "2026-11-15T10-40-02-train"
SLOW = 2  # the rank that is late in TRAIN, from step 120 on
BEGUN = 1_794_738_000.0


def make_all(root: Path) -> Path:
    """Everything below `root`."""
    make_run(root / TRAIN, seed=1, traced=True)
    make_run(root / OTHER, seed=2, speed=1.6, mods=["precision", "channels_last"], traced=True)
    make_scale(root / "2026-11-15T11-02-47-train")
    make_sweep(root / "2026-11-15T11-20-13-sweep-train")
    make_tune(root / "2026-11-15T11-48-55-tune-train")
    make_bandwidth(root / "2026-11-15T12-30-20-bandwidth")
    make_live(root / "2026-11-15T13-05-09-train")
    return root


def make_run(
    folder: Path,
    *,
    seed: int = 1,
    ranks: int = 4,
    steps: int = 300,
    speed: float = 1.0,
    mods: list[str] | None = None,
    traced: bool = False,
    script: str = "train.py",
    outcome: Outcome | None = None,
) -> Path:
    folder.mkdir(parents=True)
    series = [[_step(n, rank, seed, speed) for n in range(1, steps + 1)] for rank in range(ranks)]
    for rank, each in enumerate(series):
        write_steps(folder, rank, each)
        (folder / f"log.rank{rank}.txt").write_text(f"epoch 1\nloss 2.30\n{EVIL}\nrank {rank} was here\n")
    write_run(
        folder,
        Run(
            paceline="0.1.0",
            verb="profile" if traced else "run",
            script=script,
            arguments=["--epochs", "3"],
            settings={"workers": ranks, "script": script},
            mods=mods or [],
            versions={"python": "3.11.7", "torch": "2.13.0"},
            topology={
                "name": "node1",
                "cores": [{"id": n, "node": 0, "physical": [0, n]} for n in range(8)],
                "gpus": ["0", "1"],
            },
            workers=[
                WorkerInfo(rank=r, host="node1", pid=4000 + r, cores=[2 * r, 2 * r + 1], threads=2, gpus=[str(r)])
                for r in range(ranks)
            ],
            started=BEGUN,
            outcome=outcome
            or Outcome(exit_code=0, seconds=61.5 / speed, view="batch", steps=steps, notices=["view: batch"]),
        ),
    )
    write_samples(folder, ranks)
    _findings(folder)
    if traced:
        for rank in range(ranks):
            trace(rank, ranks, late=1.4 if rank == SLOW else 1.0).write(folder / f"trace.rank{rank}.json.gz")
    return folder


def write_steps(folder: Path, rank: int, steps: list[Step]) -> None:
    writer = StepWriter(folder / f"steps.rank{rank}.jsonl")
    for each in steps:
        writer.append(each)
    writer.close()


def _step(number: int, rank: int, seed: int, speed: float) -> Step:
    chance = random.Random(f"{seed}/{number}/{rank}")
    scale = (12.0 if number == 1 else 1.0 + 1.5 * math.exp(-number / 4)) / speed
    late = 0.030 if rank == SLOW and number >= 120 else 0.0
    parts = {
        "data": 0.004 + late + (0.4 if number in (77, 203) else 0.0),
        "forward": 0.038 * chance.uniform(0.97, 1.03),
        "backward": 0.071 * chance.uniform(0.97, 1.03),
        "optimizer": 0.009,
        "other": 0.002,
    }
    parts = {name: seconds * scale for name, seconds in parts.items()}
    waits = 0.030 if number >= 120 and rank != SLOW else 0.0
    communication = (0.012 * chance.uniform(0.9, 1.1) + waits) / speed
    loss = 2.3 * math.exp(-number / 140) + 0.25 + chance.uniform(-0.03, 0.03)
    total = sum(parts.values()) + communication
    return Step(
        step=number, at=BEGUN + 0.15 * number, samples=256, total=total, communication=communication, loss=loss,
        memory=11_300_000_000, **parts,
    )  # fmt: skip


def write_samples(folder: Path, ranks: int) -> None:
    lines = []
    for n in range(90):
        busy = 0.9 * min(1.0, n / 8) + random.Random(n).uniform(-0.06, 0.06) * (n > 2)
        lines.append(
            Sample(
                at=BEGUN + n / 2, cpu=[busy, 0.9 * busy, 0.2, 0.1], memory=9 << 30, memory_total=64 << 30,
                read=2e6, written=1e5, received=3e4, sent=2e4,
                workers=[WorkerSample(rank=r, cpu=1.2, memory=2 << 30, children=2) for r in range(ranks)],
                gpus=[
                    GpuSample(index=r, utilisation=max(0.0, busy - 0.04 * r), memory=11 << 30,
                              memory_total=141 << 30, power=120 + 500 * max(0.0, busy) - 9 * r,
                              clock=1.7e9, clock_most=1.98e9, temperature=55)
                    for r in range(ranks)
                ],
            )
        )  # fmt: skip
    import msgspec

    (folder / "devices.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _findings(folder: Path) -> None:
    found = [
        Finding(
            rule="mixed_precision",
            title="Matrix products run in float32 though tensor cores could take them",
            evidence=[
                Figure("products in float32 on ordinary cores", 0.0047, "s"),
                Figure("share of the device's compute", 0.87),
                Figure("step", 0.0054, "s"),
            ],
            advice="paceline run --mod precision=bf16 …",
            mod="precision=bf16",
            predicted_gain=1.8,
            how="those products twice as fast, and the device decides",
            measured_gain=1.62,
            proof="3 pairs of trials",
        ),
        Finding(
            rule="imbalance",
            title=f"Worker {SLOW} keeps the others waiting since step 120",
            evidence=[Figure("longer by", 0.030, "s"), Figure("the phase that is longer", "data")],
            advice="Look at its loader.",
            predicted_gain=1.2,
        ),
        Finding(
            rule="waiting_lines",
            title=f"train.py:41 (item): the host waits for the device in every step {EVIL}",
            evidence=[Figure(f"train.py:41 {EVIL}", 0.0015, "s")],
            advice=f"Add up on the device. {EVIL}",
            where="train.py:41",
            predicted_gain=1.02,
        ),
    ]
    write_findings(folder, found)


def trace(rank: int, world: int, *, steps: int = 3, layers: int = 12, late: float = 1.0) -> Machine:
    """A few steps of a network on a GPU, with a name that is hostile."""
    machine = Machine(rank, world)
    for _ in range(steps):
        with machine.step():
            with machine.annotation("paceline.data"):
                machine.work(int(400_000 * late))
            with machine.op("aten::to"), machine.op("aten::copy_"):
                machine.copy("HtoD (Pageable -> Device)", 3_000_000, 200_000)
            with machine.annotation("paceline.forward"):
                for layer in range(layers):
                    with machine.op("aten::conv2d", 6_000), machine.op("aten::cudnn_convolution", 9_000):
                        machine.launch("sm90_xmma_fprop_implicit_gemm_f32f32_nhwc", 90_000 + 5_000 * layer)
                    with machine.op("aten::batch_norm", 4_000):
                        machine.launch("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", 22_000)
                    with machine.op("aten::relu" if layer else f"aten::relu {EVIL}", 3_000):
                        machine.launch("void at::native::vectorized_elementwise_kernel<4, relu>", 6_000)
            with machine.annotation("paceline.line#train.py:41#item"), machine.op("aten::item"):
                machine.copy("DtoH (Device -> Pageable)", 4, 2_000, wait=True)
            with machine.annotation("paceline.backward"):
                for layer in range(layers):
                    with machine.op("autograd::engine::evaluate_function: ConvolutionBackward0", 5_000):
                        with machine.op("aten::convolution_backward", 9_000):
                            machine.launch("sm90_xmma_dgrad_implicit_gemm_f32f32_nhwc", 110_000)
                            machine.launch("sm90_xmma_wgrad_implicit_gemm_f32f32_nhwc", 120_000)
                    if layer % 4 == 3:
                        machine.wait_for(20, 7)
                        with machine.op("nccl:all_reduce", 8_000):
                            machine.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 180_000, stream=20)
            machine.wait_for(7, 20)
            with machine.annotation("paceline.optimizer"), machine.annotation("Optimizer.step#SGD.step"):
                for _ in range(6):
                    with machine.op("aten::_foreach_add_", 5_000):
                        machine.launch("void at::native::multi_tensor_apply_kernel<float>", 9_000)
            machine.synchronize()
    return machine


def make_series(folder: Path, verb: str, verdict: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    write_run(
        folder,
        Run(paceline="0.1.0", verb=verb, script="train.py", arguments=[], settings={}, started=BEGUN,
            outcome=Outcome(exit_code=0, seconds=212.0)),
    )  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(verdict))
    return folder


def make_scale(folder: Path) -> Path:
    points = []
    for workers, efficiency in ((1, 1.0), (2, 0.94), (4, 0.86), (8, 0.71)):
        speed = 1710.0 * workers * efficiency
        seconds = {"compute": 0.12, "communication": 0.01 * workers, "imbalance": 0.004 * workers, "input": 0.003}
        lost = {
            "compute": 0.01,
            "communication": 0.6 * (1 - efficiency),
            "imbalance": 0.3 * (1 - efficiency),
            "input": 0.0,
        }
        points.append(
            {
                "workers": workers, "samples_per_s": speed, "low": 0.97 * speed, "high": 1.02 * speed,
                "speedup": workers * efficiency, "speedup_low": 0.97 * workers * efficiency,
                "speedup_high": 1.02 * workers * efficiency, "efficiency": efficiency, "view": "batch",
                "step": {"total": 256 / speed, "forward": 0.4 * 256 / speed, "backward": 0.6 * 256 / speed},
                "rounds": 3,
                "why": {"seconds": {**seconds, "total": sum(seconds.values())}, "lost": lost, "compute_lost": {},
                        "waited_for": None, "lateness": 0.0, "sentence": f"{workers} workers reach {efficiency:.0%}."},
            }
        )  # fmt: skip
    verdict = {
        "mode": "strong", "base": 1, "rounds": 3, "steps": 30, "warm_up": 5, "points": points,
        "same_numbers": {"checked": True, "same": True, "max_difference": 2.1e-6, "why": ""}, "failures": [],
        "interrupted": False,
    }  # fmt: skip
    make_series(folder, "scale", verdict)
    make_run(folder / "trials" / "round1-workers2", seed=5, ranks=2, steps=30)
    return folder


def make_sweep(folder: Path) -> Path:
    speeds = {32: 610, 64: 1120, 128: 1790, 256: 2280, 512: 2410, 1024: 2430}
    points: list[dict[str, Any]] = [
        {"batch": b, "fits": True, "status": "ok", "samples_per_s": s, "low": 0.97 * s, "high": 1.02 * s,
         "memory": b * 40_000_000, "step": {"total": b / s}, "rounds": 2, "message": ""}
        for b, s in speeds.items()
    ]  # fmt: skip
    points.append({"batch": 2048, "fits": False, "status": "memory", "message": "out of memory"})
    verdict = {"workers": 1, "mods": [], "own": 64, "points": points, "knee": 256, "best": 1024, "largest": 1024,
               "ceiling": "memory", "why": "out of memory", "keep": "batch=x4", "interrupted": False}  # fmt: skip
    return make_series(folder, "sweep", verdict)


def make_tune(folder: Path) -> Path:
    def row(mod: str, after: float | None, kept: bool, reason: str = "") -> dict[str, Any]:
        gain = after / 1700 if after else None
        return {"mod": mod, "before": 1700.0 if after else None, "after": after, "gain": gain, "kept": kept,
                "loss_difference": 0.001 if after else None, "reason": reason, "on": []}  # fmt: skip

    speed = {"samples_per_s": 1700.0, "low": 1670.0, "high": 1730.0, "batch": 64, "memory": 3 << 30,
             "step": {"total": 0.0376}, "trials": 4}  # fmt: skip
    final = {"mods": ["precision=bf16", "channels_last"], "samples_per_s": 3570.0, "gain": 2.1, "gain_low": 2.05,
             "gain_high": 2.14, "pairs": 4, "memory": 2 << 30, "loss_difference": 0.002}  # fmt: skip
    verdict = {
        "baseline": speed,
        "mods": [row("precision=bf16", 2750, True), row("channels_last", 2300, True),
                 row("compile", 1720, False, "no gain above the noise (2 %)"),
                 row("batch=x16", None, False, "out of memory")],
        "final": final, "noise": 0.011, "guard": None, "notes": ["budget 10 min"], "budget": 600.0, "spent": 512.0,
        "trials": 23, "cut_short": False, "problem": "", "interrupted": False,
    }  # fmt: skip
    folder = make_series(folder, "tune", verdict)
    (folder / "tuned.patch").write_text("--- train.py\n+++ train.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n")
    by_hand = [{"mod": "precision=bf16", "lines": "with torch.autocast('cpu'):\n    loss = …"}]
    (folder / "by_hand.json").write_text(json.dumps(by_hand))
    return folder


def make_bandwidth(folder: Path) -> Path:
    pairs = [
        {"between": "workers", "a": a, "b": b, "backend": "paceline", "direct": True, "bytes": 1 << 26,
         "gb_per_s": 9.0 - abs(a - b), "low": 8.0, "high": 9.5, "both_ways_gb_per_s": 15.0, "latency": 2e-6 * (1 + b),
         "kind": None, "usual": None}
        for a in range(4) for b in range(a + 1, 4)
    ]  # fmt: skip
    collectives = [
        {"op": "all_reduce", "backend": backend, "algorithm": "ring", "workers": 4, "bytes": 1 << k,
         "seconds": 1e-5 + (1 << k) / rate, "low": 9e-6 + (1 << k) / rate, "high": 2e-5 + (1 << k) / rate,
         "algbw": (1 << k) / (1e-5 + (1 << k) / rate) / 1e9,
         "busbw": 1.5 * (1 << k) / (1e-5 + (1 << k) / rate) / 1e9, "share": 0.5}
        for backend, rate in (("paceline", 6e9), ("gloo", 1.5e9)) for k in range(10, 29, 2)
    ]  # fmt: skip
    verdict = {"workers": 4, "copies": [], "pairs": pairs, "collectives": collectives, "copy_limits": [], "flags": [
        {"what": "GPU0 to GPU3, NV4", "gb_per_s": 30.0, "usual": 80.0, "share": 0.375, "look_at": "its slot"}],
        "notes": ["4 workers"], "failures": [], "interrupted": False}  # fmt: skip
    return make_series(folder, "bandwidth", verdict)


def make_live(folder: Path, *, steps: int = 25) -> Path:
    """A run that is in progress as long as somebody appends to it."""
    folder.mkdir(parents=True)
    for rank in range(2):
        write_steps(folder, rank, [_step(n, rank, 9, 1.0) for n in range(1, steps + 1)])
        (folder / f"log.rank{rank}.txt").write_text("epoch 1\n")
    write_run(
        folder,
        Run(paceline="0.1.0", verb="run", script="train.py", arguments=[], settings={"workers": 2}, started=time.time(),
            workers=[WorkerInfo(rank=r, host="node1", pid=1, cores=[r], threads=1) for r in range(2)]),
    )  # fmt: skip
    return folder


def grow(folder: Path, start: int, count: int) -> None:
    """The run makes some more steps."""
    for rank in range(2):
        write_steps(folder, rank, [_step(n, rank, 9, 1.0) for n in range(start, start + count)])


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
