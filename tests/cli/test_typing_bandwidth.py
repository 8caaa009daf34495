"""What `paceline bandwidth` prints of made-up measurements; acceptance/test_bandwidth_verb.py takes real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from fake_launch import FakeZygote

import paceline.launch
from paceline.comm.measuring.plan import Collective, Copy, MeasuringPlan, Pair, Report
from paceline.launch import Output
from paceline.record import Outcome, read_run
from paceline.settings import RunSettings
from paceline.topology import Core, Host
from paceline.topology.machine import Gpu, Link, Topology

REPORTS: dict[str, list[Report]] = {
    "devices": [
        Copy(
            gpu=gpu,
            uuid=f"GPU-{gpu}",
            name="A GPU",
            path=path,
            pinned=pinned,
            bytes=10**9,
            seconds=[1 / rate],
            latency=[1e-5],
        )
        for gpu in range(2)
        for path, pinned, rate in (
            ("host to device", True, 26.0 if gpu == 0 else 6.0),
            ("device to host", False, 5.0),
            ("device memory", None, 700.0),
        )
    ]
    + [
        Pair(
            between="gpus",
            a=a,
            b=1 - a,
            backend="peer to peer" if direct else "through the host",
            direct=direct,
            bytes=10**9,
            one_way=[1 / (48.0 if direct else 9.4)],
            both_ways=[1 / 45.0],
            latency=[1.6e-6],
            uuids=(f"GPU-{a}", f"GPU-{1 - a}"),
        )
        for direct in (True, False)
        for a in (0, 1)
    ],
    "workers": [
        Collective(
            op=op,
            backend=backend,
            algorithm=way,
            workers=2,
            bytes=size,
            seconds=[seconds, seconds * 1.02],
            copy=[1e-4],
        )
        for op in ("all_reduce", "broadcast")
        for size in (1 << 10, 1 << 20)
        for backend, way, seconds in (
            ("memory", "copied", 1e-3),
            ("memory", "in place", 4e-4),
            ("gloo", "its own", 4e-3),
        )
    ],
}


class FakeMeasuring:
    """A `launch` that reports what is above, or fails."""

    def __init__(self) -> None:
        self.runs: list[RunSettings] = []
        self.plans: list[MeasuringPlan] = []
        self.outcome = Outcome(exit_code=0, seconds=1.0)
        self.raises: BaseException | None = None

    def __call__(self, run: RunSettings, *, record: Path, on_event, **_: object) -> Outcome:
        self.runs.append(run)
        if self.raises:
            raise self.raises
        self.plans.append(msgspec.json.decode(run.arguments[0], type=MeasuringPlan))
        record.mkdir(parents=True)
        for report in REPORTS[record.name]:
            with open(record / "measurements.jsonl", "ab") as file:
                file.write(msgspec.json.encode(report) + b"\n")
            on_event(Output(0, "stdout", b"something was measured\n"))
        return self.outcome


@pytest.fixture
def measured(monkeypatch, tmp_path) -> FakeMeasuring:
    """A machine with four cores and two GPUs, the second in a slot that gives too little."""
    fake = FakeMeasuring()
    FakeZygote.started = []
    cores = tuple(Core(id=i, node=0, physical=(0, i)) for i in range(4))
    gpus = tuple(Gpu(index=i, uuid=f"GPU-{i}", node=0, pcie_generation=4, pcie_width=16) for i in range(2))
    machine = Topology(devices=gpus, links=(Link(a=0, b=1, kind="NV2", gb_per_s=48.0, p2p=True),))
    monkeypatch.setattr(paceline.launch, "Zygote", FakeZygote)
    monkeypatch.setattr("paceline.trials.bandwidth.series.launch", fake)
    monkeypatch.setattr("paceline.cli.bandwidth.discover", lambda: Host(name="here", cores=cores, gpus=("0", "1")))
    monkeypatch.setattr("paceline.cli.bandwidth.survey", lambda: machine)
    monkeypatch.chdir(tmp_path)
    return fake


def the_record(folder: Path) -> Path:
    [record] = (folder / "paceline-runs").iterdir()
    return record


def test_the_tables(measured, paceline_, tmp_path):
    code, out, err = paceline_("bandwidth")
    assert (code, err.count("\n")) == (0, 2), "progress, a line for each trial, and nothing else"
    assert [run.workers for run in measured.runs] == [1, 2]
    assert not any(run.staged for run in measured.runs)
    for words in (
        "host to device  pinned    26.0  26.0–26.0   25.8",
        "device memory",
        "2 × A GPU",
        "1.6 µs",
        "pairs of GPUs, peer to peer",
        "0→1      48.0",
        "2 NVLinks (NV2)",
        "all_reduce, 2 workers",
        "memory in place",
        "1 MiB",
        "Copying 1 MiB on all workers at once: 21.0 GB/s together",
    ):
        assert words in out, f"{words!r} is not in\n{out}"
    assert re.findall("(?m)^.* of the usual .*", out) == [
        "GPU1, host to device, pinned: 6.00 GB/s, 23 % of the usual 25.8 GB/s."
    ]
    assert "pcie.link.width.current" in out
    told = [line for line in out.splitlines() if not line.startswith(("→", "plot", "record"))]
    assert all(len(line) <= 80 for line in told)
    record = the_record(tmp_path)
    assert {path.name for path in (record / "plots").iterdir()} == {"collectives.svg"}
    assert "<svg" in (record / "plots" / "collectives.svg").read_text()
    assert json.loads((record / "verdict.json").read_text())["workers"] == 2
    run = read_run(record)
    assert (run.verb, run.outcome.exit_code) == ("bandwidth", 0)  # type: ignore[union-attr]
    assert all(zygote.closed for zygote in FakeZygote.started)


def test_the_document(measured, paceline_):
    code, out, _ = paceline_("bandwidth", "--json", "--quiet")
    document = json.loads(out)
    assert code == 0
    assert {"schema", "verb", "record", "paceline"} <= document.keys()
    assert document["verb"] == "bandwidth"
    for key in ("a", "b", "direct", "gb_per_s", "both_ways_gb_per_s", "latency"):
        assert key in document["pairs"][0]
    for key in ("op", "backend", "algorithm", "workers", "bytes", "seconds", "algbw", "busbw"):
        assert key in document["collectives"][0]
    assert len(document["copies"]) == 6
    assert [flag["usual"] for flag in document["flags"]] == [25.8]
    assert len(document["plots"]) == 1


def test_what_is_asked_for_reaches_the_workers(measured, paceline_):
    paceline_(
        *("bandwidth", "-n", "3", "--only", "collectives", "--ops", "broadcast", "--sizes", "4K,1K"),
        *("--backends", "memory,network", "--quiet"),
    )
    [plan] = measured.plans
    assert (plan.ops, plan.sizes, plan.backends) == (("broadcast",), (1 << 10, 1 << 12), ("memory", "network"))
    assert (plan.pair_bytes, plan.device_bytes) == (0, 0)
    assert measured.runs[0].workers == 3


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["-n", "1"], "needs at least 2"),
        (["-n", "5"], "has 4 cores"),
        (["--ops", "all_reduce,sum"], "no 'sum'"),
        (["--sizes", "1Q"], "is not a size between"),
        (["--backends", "mpi"], "no 'mpi'"),
        (["--only", "gpus"], "no 'gpus'"),
        (["-n", "3", "--backends", "nccl"], "NCCL needs one GPU per worker"),
    ],
)
def test_a_mistake_leaves_nothing_behind(measured, paceline_, tmp_path, typed, found):
    code, out, err = paceline_("bandwidth", *typed, "--json")
    assert code == 2
    assert found in err
    assert "Traceback" not in err
    assert json.loads(out)["error"]["type"] == "UsageError"
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_fails(measured, paceline_):
    measured.outcome = Outcome(exit_code=1, seconds=1.0, message="RuntimeError: no such device")
    code, out, err = paceline_("bandwidth", "--json")
    assert code == 1
    assert len(measured.runs) == 2  # what goes on between workers is another matter
    assert "devices: failed\nRuntimeError: no such device" in err
    assert json.loads(out)["error"]["message"] == "RuntimeError: no such device"


@pytest.mark.parametrize("expected", [130, 143])
def test_an_interrupt_shows_what_had_been_measured(measured, paceline_, tmp_path, expected):
    measured.outcome = Outcome(exit_code=expected, seconds=1.0, interrupted=True)
    code, out, _ = paceline_("bandwidth")
    assert code == expected
    assert len(measured.runs) == 1
    assert "interrupted" in out
    assert "device memory" in out
    assert read_run(the_record(tmp_path)).outcome.interrupted  # type: ignore[union-attr]


def test_an_interrupt_between_two_trials(measured, paceline_, tmp_path):
    measured.raises = KeyboardInterrupt()
    assert paceline_("bandwidth")[0] == 130
    assert read_run(the_record(tmp_path)).outcome.interrupted  # type: ignore[union-attr]


def test_a_gpu_that_torch_cannot_use(measured, paceline_, monkeypatch):
    monkeypatch.setitem(REPORTS, "devices", [])
    code, out, _ = paceline_("bandwidth")
    assert code == 0
    assert "torch can use none of this machine's" in out
    code, out, _ = paceline_("bandwidth", "--only", "devices", "--json")
    assert code == 1  # that was all that was asked for
    assert "torch can use none of this machine's" in json.loads(out)["error"]["message"]
