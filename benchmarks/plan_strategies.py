"""Predicted against measured steps of the strategies other than mirrored: time, and bytes between hosts.

    sudo python benchmarks/plan_strategies.py FOLDER                 # measures, into FOLDER, and compares
    sudo python benchmarks/plan_strategies.py FOLDER --compare       # compares what FOLDER holds

Hosts, scripts and emulated compute are those of `plan_hosts.py`, with one worker on each host; central storage, which
needs one host, has all workers on one. Bytes are counted at the hosts' interfaces, between two steps of a run, and
include headers and acknowledgements. Modules sleep for a time by rows; under `mesh`, which splits each layer, for that
time over the number of workers.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from plan_hosts import BATCH, SCRIPT, limit, probe, type_it
from side_by_side import ROOT

from paceline.plan.cluster import Cluster
from paceline.plan.fabric import Fabric
from paceline.plan.step import Model, Setup
from paceline.plan.workload import read_workload
from paceline.record import read_steps
from paceline.tables.figures import read_figures

sys.path.insert(0, str(ROOT / "tests" / "launch"))
import namespaces
from namespaces import Hosts

TYPED = {
    "sharded": "sharded",
    "server": "server",
    "pipeline": "pipeline(stages={n})",
    "mesh": "mesh(model={n})",
    "central": "central",
}
CUT = {"mlp": (1024 * 4, 3), "gpt": (8 * 192 * 4, 6), "cnn": (0, 0)}  # bytes of a row between two modules; modules
STAGES = {"mlp": (3,), "gpt": (2, 3)}  # numbers of workers that can be given equal parts of the modules
FIRST = 4  # steps left out of the count of bytes
EVERY = 0.05  # seconds


class Counter:
    """Bytes that each host has sent, by time."""

    def __init__(self, hosts: Hosts, count: int) -> None:
        tag = hosts.spaces[0].removesuffix("n0")
        # What a host sends is received by the other end of its cable.
        self._files = [Path(f"/sys/class/net/{tag}v{n}/statistics/rx_bytes") for n in range(count)]
        self._over = threading.Event()
        self.seen: list[tuple[float, list[int]]] = []
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Counter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            self.seen.append((time.time(), [int(file.read_text()) for file in self._files]))

    def sent(self, begin: float, end: float) -> list[int]:
        """Bytes of each host between two moments."""
        first = next(told for at, told in self.seen if at >= begin)
        last = next((told for at, told in self.seen if at >= end), self.seen[-1][1])
        return [b - a for a, b in zip(first, last, strict=True)]


def measure(folder: Path, args: argparse.Namespace) -> None:
    """Writes `cases.json`, and the records of the series that predictions are made from."""
    kept = folder / "cases.json"
    cases: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    text = SCRIPT.format(examples=str(ROOT / "examples"), batch=BATCH, seconds=args.seconds)
    text = text.replace("steps, batch = sys.argv[1], 24,", f"steps, batch = sys.argv[1], {args.steps},")
    (folder / "emulated.py").write_text(text)
    divided = text.replace(f"{args.seconds} / 3", f"{args.seconds} / int(sys.argv[2]) / 3")
    (folder / "divided.py").write_text(divided)
    # Asynchronous workers deal the batches out among them, and the first ones show only who may be ahead of whom.
    (folder / "many.py").write_text(text.replace(f"{args.steps}, {BATCH}", f"{args.steps * 4}, {BATCH}"))
    with namespaces.hosts(folder / "hosts", 4, over_ssh=False) as hosts:
        kinds = args.only.split(",")
        for kind in kinds:
            if not (folder / f"known-{kind}").is_dir():
                type_it(folder, "plan", "--measure", "--record", f"known-{kind}", "--threads", "1", "emulated.py", kind)
        for rate in args.rates.split(","):
            limit(hosts, rate)
            latency, bandwidth = probe(hosts, folder)
            print(f"{rate}: {latency * 1e6:.0f} µs, {bandwidth / 1e6:.1f} MB/s", flush=True)
            for strategy in args.strategies.split(","):
                for kind in kinds:
                    fitting = STAGES.get(kind, ()) if strategy in ("pipeline", "mesh") else (2, 3, 4)
                    for count in (int(n) for n in args.workers.split(",") if int(n) in fitting):
                        name = f"{strategy}-{kind}-{rate}-{count}"
                        spec = ",".join(f"{name}:1" for name in hosts.names[:count])
                        where = ["-n", str(count)] if strategy == "central" else ["--hosts", spec, "--ssh", hosts.ssh]
                        script = {"mesh": ["divided.py", kind, str(count)], "server": ["many.py", kind]}
                        with Counter(hosts, count) as counter:
                            type_it(
                                folder,
                                *("run", *where, "--threads", "1", "--no-autotune", "--record", name, "--quiet"),
                                *(
                                    "--strategy",
                                    TYPED[strategy].format(n=count),
                                    *script.get(strategy, ["emulated.py", kind]),
                                ),
                            )
                            time.sleep(2 * EVERY)
                        record = max((folder / name).iterdir())
                        # Asynchronous workers differ, and the slowest one's pace is the run's.
                        paced = count - 1 if strategy == "server" else 0
                        found, steps = read_figures(record), read_steps(record, paced)
                        own = [step.total for step in steps[FIRST:]]
                        sent = counter.sent(steps[FIRST].at, steps[-1].at)
                        case = {
                            "strategy": strategy,
                            "kind": kind,
                            "rate": rate,
                            "workers": count,
                            "latency": latency,
                            "bandwidth": bandwidth,
                            "seconds": statistics.median(own) if strategy == "server" else found.step_time,
                            "step": found.step,
                            "sent": [each / (len(steps) - 1 - FIRST) for each in sent],
                        }
                        cases = [one for one in cases if key(one) != key(case)] + [case]
                        print(compared(folder, case), flush=True)
                        kept.write_text(json.dumps(cases, indent=1))


def key(case: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(case[name] for name in ("strategy", "kind", "rate", "workers"))


def predicted(folder: Path, case: dict[str, Any]) -> Any:
    work = read_workload(next((folder / f"known-{case['kind']}").iterdir()))
    cut, blocks = CUT[case["kind"]]
    work = msgspec.structs.replace(work, cut=cut, blocks=blocks)
    count, strategy = case["workers"], case["strategy"]
    one = strategy == "central"
    cluster = Cluster(
        hosts=1 if one else count,
        slots=count if one else 1,
        gbit_per_s=case["bandwidth"] * 8 / 1e9,
        goodput=1.0,
        latency=case["latency"],
    )
    # Each worker of an asynchronous run takes whole batches of the script.
    batch = BATCH * (count if strategy == "server" else 1)
    model = count if strategy in ("pipeline", "mesh") else 1
    return Model(work, Fabric(cluster)).predict(
        Setup(workers=count, batch=batch, strategy=strategy, model=model, base=BATCH)
    )


def compared(folder: Path, case: dict[str, Any]) -> str:
    found = predicted(folder, case)
    off = found.seconds / case["seconds"] - 1
    sent = max(case["sent"])
    return (
        f"{case['strategy']:9} {case['kind']:4} {case['rate']:8} {case['workers']} workers: predicted "
        f"{found.seconds * 1e3:6.0f} ms, measured {case['seconds'] * 1e3:6.0f} ms, {off * 100:+4.0f} %; a host sent "
        f"{sent / 1e6:6.2f} MB; communication predicted "
        f"{found.parts['communication'] * 1e3:.0f}, measured {case['step']['communication'] * 1e3:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare predicted and measured steps of the other strategies.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compare", action="store_true", help="do not measure")
    parser.add_argument("--rates", default="200mbit,1gbit", help="bandwidths of the links, in tc's notation")
    parser.add_argument("--only", help="examples: cnn,mlp,gpt", default="cnn,mlp,gpt")
    parser.add_argument("--strategies", default=",".join(TYPED))
    parser.add_argument("--workers", default="2,3,4")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.03, help="emulated compute of a row")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces are removed
    args.folder = args.folder.absolute()
    if not args.compare:
        if why := namespaces.why_not(over_ssh=False):
            sys.exit(f"plan_strategies.py: {why}")
        (args.folder / "hosts").mkdir(parents=True, exist_ok=True)
        measure(args.folder, args)
    cases = json.loads((args.folder / "cases.json").read_text())
    errors: dict[str, list[float]] = {}
    for case in cases:
        if args.compare:
            print(compared(args.folder, case))
        errors.setdefault(case["strategy"], []).append(predicted(args.folder, case).seconds / case["seconds"] - 1)
    for strategy, found in errors.items():
        middle, worst = statistics.median(map(abs, found)), max(found, key=abs)
        print(f"{strategy}: error of {len(found)} runs: median {middle * 100:.0f} %, worst {worst * 100:+.0f} %")


if __name__ == "__main__":
    main()
