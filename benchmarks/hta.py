"""Speed of reading traces: paceline against HolisticTraceAnalysis, on the same 8 ranks with a million events.

    python -m venv .venv-hta && .venv-hta/bin/pip install HolisticTraceAnalysis
    python benchmarks/hta.py --hta .venv-hta/bin/python
    python benchmarks/hta.py --hta .venv-hta/bin/python --steps 1 --repeat 1      # smoke test

HolisticTraceAnalysis (HTA) needs its own environment (it depends on Jupyter), and fails on traces without GPU events.
So this benchmark generates traces of a simulated GPU (see tests/tables/cuda_trace.py), in torch's format.

Each side is a new process that reads the eight files and computes the time breakdown (compute, other, idle) and the
overlap of communication and compute. Time is from the first file to the last figure, without imports; memory is the
peak of the process and its children. CPU time, imports included, is reported as well, because it varies less on a busy
machine. Rounds are interleaved, and the figures of both sides must agree within 1 %. HTA_DISABLE_NS_ROUNDING keeps HTA
from rounding: by default HTA shortens every event to the whole microseconds inside it, which removes one or two of the
three microseconds of a small kernel.

Figures, 2 cores of a VM, 1.1 M events, 3 rounds: 12.8 (12.3 – 13.3) × faster, with 12.0 (10.8 – 12.1) × less CPU time
and 3.1 × less memory; the figures differ by 0.005 % at most. In this measurement both sides also computed the idle
breakdown of each stream, which paceline no longer has.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from side_by_side import ROOT

sys.path.insert(0, str(ROOT / "tests" / "tables"))
from cuda_trace import COMMUNICATION, Machine

RANKS = 8
AGREE = 0.01

OURS = """
import json, sys, time
from pathlib import Path
from paceline.tables.trace.intervals import Spans
from paceline.tables.timeline import overlap, work
from paceline.tables.trace.parallel import read_together

begun = time.perf_counter()
traces = read_together(sorted(Path(sys.argv[1]).glob("*.json.gz")))
loaded = time.perf_counter()
told = {}
for trace in traces:
    [each] = work(trace)
    busy = each.busy
    whole = int(busy.ends[-1] - busy.starts[0])
    figures = {"idle": whole - busy.length, "compute": each.compute.length, "whole": whole}
    figures["overlap"] = overlap(trace)["share"][0]
    told[trace.rank] = figures
ended = time.perf_counter()
events = sum(trace.events.height for trace in traces)
print(json.dumps({"load": loaded - begun, "seconds": ended - begun, "events": events, "figures": told}))
"""

THEIRS = """
import json, logging, sys, time, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from pathlib import Path
from hta.trace_analysis import TraceAnalysis

paths = sorted(Path(sys.argv[1]).glob("*.json.gz"))
begun = time.perf_counter()
analysis = TraceAnalysis(trace_files={i: str(path) for i, path in enumerate(paths)}, trace_dir=sys.argv[1],
                         include_last_profiler_step=True)
loaded = time.perf_counter()
told = {}
for row in analysis.get_temporal_breakdown(visualize=False).to_dict("records"):
    told[row["rank"]] = {"idle": row["idle_time(us)"] * 1e3, "compute": row["compute_time(us)"] * 1e3,
                         "whole": row["kernel_time(us)"] * 1e3}
for row in analysis.get_comm_comp_overlap(visualize=False).to_dict("records"):
    told[row["rank"]]["overlap"] = row["comp_comm_overlap_pctg"] / 100
ended = time.perf_counter()
print("FIGURES " + json.dumps({"load": loaded - begun, "seconds": ended - begun, "figures": told}))
"""


def train(machine: Machine, steps: int, draw: random.Random) -> None:
    """A data-parallel network of a few hundred layers, whose gradients are summed on a separate stream."""
    for _ in range(steps):
        with machine.step():
            with machine.annotation("paceline.data"):
                machine.work(draw.randrange(1_000, 400_000))
            machine.copy("HtoD (Pageable -> Device)", 1 << 20, draw.randrange(20_000, 90_000))
            for phase, layers in (("forward", 400), ("backward", 800)):
                with machine.annotation(f"paceline.{phase}"):
                    for layer in range(layers):
                        _layer(machine, draw, layer)
                        if phase == "backward" and layer % 20 == 19:
                            machine.wait_for(COMMUNICATION, 7)
                            with machine.op("nccl:all_reduce"):
                                kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                                machine.launch(kernel, draw.randrange(50_000, 400_000), stream=COMMUNICATION)
            machine.wait_for(7, COMMUNICATION)
            with machine.annotation("paceline.optimizer"):
                for _ in range(40):
                    with machine.op("aten::_foreach_add_"):
                        machine.launch("multi_tensor_apply_kernel", draw.randrange(3_000, 20_000))
            with machine.op("aten::item"), machine.op("aten::_local_scalar_dense"):
                machine.copy("DtoH (Device -> Pageable)", 4, 1_500)
                machine.synchronize("cudaStreamSynchronize")


def _layer(machine: Machine, draw: random.Random, layer: int) -> None:
    shapes = {"Input Dims": [[64, 1024], [1024, 1024 + layer % 7]], "Input type": ["float", "float"]}
    about = {**shapes, "Sequence number": layer, "Fwd thread id": 0, "Concrete Inputs": ["", ""]}
    with machine.op("aten::linear", 3_000, **about), machine.op("aten::addmm", 4_000, **shapes):
        machine.launch(f"ampere_sgemm_128x64_tn_{layer % 23}", draw.randrange(2_000, 40_000))
    if draw.random() < 0.1:
        machine.work(draw.randrange(5_000, 60_000))  # Python
    with machine.op("aten::relu", **shapes), machine.op("aten::clamp_min"):
        machine.launch("vectorized_elementwise_kernel<4, clamp>", draw.randrange(2_000, 9_000))


def write(folder: Path, steps: int) -> int:
    """Writes the traces. Returns the number of events."""
    events = 0
    for rank in range(RANKS):
        machine = Machine(rank, RANKS)
        train(machine, steps, random.Random(rank))
        machine.write(folder / f"rank{rank}.json.gz")
        events += len(machine.events)
        print(f"rank {rank}: {len(machine.events):,} events", file=sys.stderr)
    return events


def measure(python: str, code: str, folder: Path) -> dict:
    """Runs one side in a process of its own."""
    pipe = subprocess.PIPE
    exact = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}
    process = subprocess.Popen([python, "-c", code, str(folder)], stdout=pipe, stderr=pipe, text=True, env=exact)
    peak, stop, before = [0], threading.Event(), processor_time()

    def watch() -> None:
        while not stop.wait(0.02):
            try:
                root = psutil.Process(process.pid)
                peak[0] = max(peak[0], sum(one.memory_info().rss for one in [root, *root.children(recursive=True)]))
            except psutil.Error:
                pass

    thread = threading.Thread(target=watch)
    thread.start()
    out, err = process.communicate()
    stop.set()
    thread.join()
    if process.returncode:
        sys.exit(f"{python} failed:\n{err[-3000:]}")
    told = json.loads(out[out.rindex('{"load"') :])
    return {**told, "memory": peak[0], "processor": processor_time() - before}


def processor_time() -> float:
    """Of all ended child processes and their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(ours: dict, theirs: dict) -> tuple[float, str]:
    """The largest difference of a figure, relative to the rank's total time (shares: absolute), and its name."""
    worst, which = 0.0, ""
    for rank, figures in theirs.items():
        mine = ours[rank]
        for name, value in figures.items():
            scale = 1.0 if name == "overlap" else figures["whole"]
            apart = abs(mine.get(name, 0.0) - (value if value == value else 0.0)) / scale
            if apart > worst:
                worst, which = apart, f"rank {rank}, {name}: {mine.get(name, 0.0):.6g} and {value:.6g}"
    return worst, which


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta", required=True, metavar="PYTHON", help="Python interpreter with HolisticTraceAnalysis")
    parser.add_argument("--steps", type=int, default=14, help="steps of each rank; a step has about 9,000 events")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.perf_counter()
        events = write(folder, options.steps)
        print(f"{events:,} events written in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        rounds = []
        for number in range(options.repeat):
            ours = measure(sys.executable, OURS, folder)
            theirs = measure(options.hta, THEIRS, folder)
            rounds.append((ours, theirs))
            told = [
                f"{name} {side['seconds']:.2f} s (load {side['load']:.2f}), "
                f"{side['processor']:.1f} s of processors, {side['memory'] >> 20} MiB"
                for name, side in (("ours", ours), ("HTA", theirs))
            ]
            print(f"round {number + 1}: {'; '.join(told)}")
    faster = [theirs["seconds"] / ours["seconds"] for ours, theirs in rounds]
    smaller = [theirs["memory"] / ours["memory"] for ours, theirs in rounds]
    worst, which = max(compare(ours["figures"], theirs["figures"]) for ours, theirs in rounds)
    print(f"{events:,} events of {RANKS} ranks")
    print(f"faster: {statistics.median(faster):.1f} × ({min(faster):.1f} to {max(faster):.1f})")
    spared = [theirs["processor"] / ours["processor"] for ours, theirs in rounds]
    print(f"less processor time: {statistics.median(spared):.1f} × ({min(spared):.1f} to {max(spared):.1f})")
    print(f"less memory: {statistics.median(smaller):.1f} × ({min(smaller):.1f} to {max(smaller):.1f})")
    print(f"figures differ by at most {worst:.4%}{f' ({which})' if which else ''}")
    sys.exit(0 if worst <= AGREE else 1)


if __name__ == "__main__":
    main()
