"""Rules about the run, its workers and its machine: where each must speak, and where it must be silent."""

from __future__ import annotations

import random

import pytest
from cuda_trace import COMMUNICATION, Machine
from made import MS, US, evidence, figures, loading, products, small, step

from paceline.advise.rules import (
    channels_last,
    checkpoints,
    data_parallel,
    device_idle,
    exposed_communication,
    gloo_on_gpus,
    imbalance,
    input_bound,
    memory_full,
    memory_unused,
    optimizer_step,
    threads,
    unused_devices,
    validation,
    varying_steps,
)
from paceline.record.facts import Facts, LoaderFacts, ModelFacts, OptimizerFacts, SaveFacts
from paceline.record.samples import GpuSample, Sample, WorkerSample

GIB = 1 << 30
TOTAL = 150_000_000_000  # bytes of the made-up GPU


def busy(machine: Machine) -> None:
    products(machine)
    machine.synchronize()


def sample(**changes) -> Sample:
    told = {"at": 1.0, "cpu": [0.5, 0.5], "memory": GIB, "memory_total": 8 * GIB}
    return Sample(**{**told, "read": 0.0, "written": 0.0, "received": 0.0, "sent": 0.0, **changes})


# -- devices -----------------------------------------------------------------------------------------------------------


def gpus(count: int) -> dict[str, object]:
    return {"cores": [{"id": n} for n in range(8)], "gpus": [str(n) for n in range(count)]}


def test_unused_gpus_are_named(tmp_path):
    model = ModelFacts(name="Net", parameters=10, bytes=4_000_000)
    found = unused_devices.find(evidence(tmp_path, busy, topology=gpus(4), facts=Facts(threads=1, models=[model])))
    assert found is not None
    assert (found.title, found.mod) == ("1 of 4 GPUs used", "workers=4")
    # A quarter of 10 ms, and half of 6 MB at 20 GB/s.
    assert found.predicted_gain == pytest.approx(10 / (2.5 + 0.15), rel=0.05)


def test_a_script_that_computes_beside_a_gpu_is_told_so(tmp_path):
    found = unused_devices.find(evidence(tmp_path, lambda m: m.work(MS), topology=gpus(1)))
    assert found is not None
    assert "computes on the CPU" in found.title
    assert found.predicted_gain is None


@pytest.mark.parametrize("workers", [1, 2])
def test_unused_devices_is_silent(tmp_path, workers):
    assert unused_devices.find(evidence(tmp_path, busy, topology=gpus(workers), workers=workers)) is None


def test_no_gpu_is_no_finding(tmp_path):
    from paceline.tables.trace import columns

    found = evidence(tmp_path, lambda m: m.work(MS))
    for one in found.traces:
        assert isinstance(one, columns.Trace)
        one.head.devices.clear()
    assert unused_devices.find(found) is None


def test_data_parallel_is_named(tmp_path):
    def body(machine: Machine) -> None:
        with machine.annotation("DataParallel.forward"):
            for device in (0, 1):
                machine.rank = device
                small(machine, 100)
            machine.rank = 0

    found = data_parallel.find(evidence(tmp_path, body))
    assert found is not None
    assert found.mod == "workers=2"
    assert found.predicted_gain == pytest.approx(2.0, rel=0.1)


def test_data_parallel_is_silent_on_one_gpu_and_about_its_distributed_sibling(tmp_path):
    def one(machine: Machine) -> None:
        with machine.annotation("DataParallel.forward"):
            small(machine, 50)

    def sibling(machine: Machine) -> None:
        with machine.annotation("DistributedDataParallel.forward"):
            for device in (0, 1):
                machine.rank = device
                small(machine, 50)
            machine.rank = 0

    assert data_parallel.find(evidence(tmp_path / "a", one)) is None
    assert data_parallel.find(evidence(tmp_path / "b", sibling)) is None


# -- memory ------------------------------------------------------------------------------------------------------------


def with_memory(allocated: int, count: int = 300):
    """A step of many small kernels, with so much memory at its peak, of which 1 GiB was there before."""

    def body(machine: Machine) -> None:
        with machine.annotation("paceline.forward"):
            machine.memory(allocated - GIB, 4096, allocated, allocated)
            small(machine, count)
            machine.memory(GIB - allocated, 4096, GIB, allocated)

    return body


def test_a_larger_batch_that_fits_is_named(tmp_path):
    told = Facts(threads=1, loaders=[LoaderFacts(batch=64, samples=100_000, dataset="TensorDataset")])
    found = memory_unused.find(evidence(tmp_path, with_memory(3 * GIB), facts=told))
    assert found is not None
    assert figures(found)["of that, not for the batch (weights, optimizer)"] == GIB
    assert figures(found)["batch"] == 64
    assert found.mod == "batch=x32"  # every kernel is short: all of it gains, as far as memory goes
    assert found.predicted_gain > 25


def test_the_largest_batch_is_bound_by_memory_and_by_the_dataset(tmp_path):
    large = memory_unused.find(evidence(tmp_path / "a", with_memory(30 * GIB)))
    assert large is not None
    assert figures(large)["largest batch that fits"] == 64 * 2  # 1 + 4 × 29 GiB are more than four fifths of 150 GB
    told = Facts(threads=1, loaders=[LoaderFacts(batch=64, samples=64 * 40, dataset="TensorDataset")])
    few = memory_unused.find(evidence(tmp_path / "b", with_memory(3 * GIB), facts=told))
    assert few is not None
    assert figures(few)["largest batch that fits"] == 64 * 4  # ten steps an epoch


@pytest.mark.parametrize("why", ["half full", "the device is busy", "asked for"])
def test_memory_unused_is_silent(tmp_path, why):
    body = with_memory(80 * GIB if why == "half full" else 3 * GIB)

    def heavy(machine: Machine) -> None:
        machine.memory(GIB, 4096, 3 * GIB, 3 * GIB)
        products(machine)
        machine.memory(-GIB, 4096, 2 * GIB, 3 * GIB)
        machine.synchronize()

    mods = ["batch=x2"] if why == "asked for" else []
    found = memory_unused.find(evidence(tmp_path, heavy if why == "the device is busy" else body, mods=mods))
    assert found is None


def test_full_memory_is_named(tmp_path):
    def body(machine: Machine) -> None:
        machine.memory(GIB, 4096, 138 * GIB, 139 * GIB)
        with machine.annotation("paceline.forward"):
            products(machine, count=4)
        with machine.annotation("paceline.backward"):
            products(machine, count=6)
        machine.memory(-GIB, 4096, 137 * GIB, 139 * GIB)
        machine.synchronize()

    found = memory_full.find(evidence(tmp_path, body))
    assert found is not None
    assert found.mod == "checkpointing"
    assert found.predicted_gain is not None
    assert found.predicted_gain < 1
    told = sample(gpus=[GpuSample(index=0, memory=95, memory_total=100)])
    assert memory_full.find(evidence(tmp_path / "others", busy, samples=[told])) is not None


def test_full_host_memory_is_named(tmp_path):
    steps = [[step(k) for k in range(1, 20)]]
    full = [sample(memory=int(7.9 * GIB))]
    assert memory_full.find(evidence(tmp_path / "a", steps=steps, samples=full)) is not None
    assert memory_full.find(evidence(tmp_path / "b", steps=steps, samples=[sample()])) is None


def test_memory_full_is_silent(tmp_path):
    assert memory_full.find(evidence(tmp_path, with_memory(100 * GIB))) is None


# -- the device idles --------------------------------------------------------------------------------------------------


def test_a_device_that_idles_is_named_with_the_largest_cause(tmp_path):
    def waiting(machine: Machine) -> None:
        loading(machine, 30 * MS)
        busy(machine)

    told = Facts(threads=1, loaders=[LoaderFacts(dataset="TensorDataset", tensors=True)])
    found = device_idle.find(evidence(tmp_path / "a", waiting, facts=told))
    assert found is not None
    assert "waits for its loader" in found.title
    assert found.mod == "resident"
    found = device_idle.find(evidence(tmp_path / "b", lambda m: small(m, 300)))
    assert found is not None
    assert "late with its launches" in found.title
    assert found.mod == "cuda_graphs"


def test_device_idle_is_silent_where_it_works(tmp_path):
    assert device_idle.find(evidence(tmp_path / "a", busy)) is None
    assert device_idle.find(evidence(tmp_path / "b", lambda m: m.work(MS))) is None


# -- workers -----------------------------------------------------------------------------------------------------------


def workers(communication: float, *, slow: float = 0.0, since: int = 0, count: int = 30) -> list[list]:
    """Two workers, of whom the second is late by so much from a step on; bytes take `communication`."""
    draw = random.Random(0)
    found: list[list] = [[], []]
    for number in range(1, count + 1):
        late = slow if number >= since else 0.0
        noise = draw.uniform(0, 0.0005)
        for rank, wait, own in ((0, late, 0.0), (1, 0.0, late)):
            waited = communication + wait + noise
            found[rank].append(step(number, 0.08 + waited + own, communication=waited))
    return found


def test_communication_that_is_waited_for_is_named(tmp_path):
    found = exposed_communication.find(evidence(tmp_path, steps=workers(0.02), workers=2))
    assert found is not None
    assert found.mod == "batch=x2"
    assert figures(found)["waiting for bytes"] == pytest.approx(0.02, rel=0.05)
    assert found.predicted_gain == pytest.approx(200 / 180, rel=0.01)


def test_an_nvlink_that_is_not_used_is_named(tmp_path):
    links = [{"a": 0, "b": 1, "kind": "SYS", "gb_per_s": 10}, {"a": 0, "b": 2, "kind": "NV2", "gb_per_s": 50}]
    made = evidence(tmp_path, steps=workers(0.02), workers=2, topology={**gpus(3), "links": links})
    assert made.run is not None
    for worker in made.run.workers:
        worker.gpus = [str(worker.rank)]
    found = exposed_communication.find(made)
    assert found is not None
    assert "GPUs 0 and 1 have no NVLink" in found.advice


def test_communication_in_a_trace_from_elsewhere(tmp_path):
    def body(machine: Machine) -> None:
        products(machine, count=8)
        machine.wait_for(COMMUNICATION, 7)
        machine.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2 * MS, stream=COMMUNICATION)
        machine.synchronize()

    found = exposed_communication.find(evidence(tmp_path, body, steps=[[], []], workers=2))
    assert found is not None
    assert figures(found)["hidden under compute"] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("why", ["little", "one worker", "a late worker"])
def test_exposed_communication_is_silent(tmp_path, why):
    steps = {
        "little": workers(0.004),
        "one worker": workers(0.02)[:1],
        "a late worker": workers(0.002, slow=0.05),
    }[why]
    assert exposed_communication.find(evidence(tmp_path, steps=steps, workers=len(steps))) is None


def test_a_late_worker_is_named_and_what_else_its_core_does(tmp_path):
    def told(alone: float) -> list[Sample]:
        own = [
            WorkerSample(rank=0, cpu=0.9, memory=1, children=0),
            WorkerSample(rank=1, cpu=alone, memory=1, children=0),
        ]
        return [sample(cpu=[1.0, 1.0], workers=own) for _ in range(3)]

    found = imbalance.find(evidence(tmp_path / "a", steps=workers(0.01, slow=0.03, since=12), samples=told(0.98)))
    assert found is not None
    assert figures(found)["worker"] == 1
    assert figures(found)["since step"] == 12
    assert found.predicted_gain == pytest.approx(1.33, rel=0.1)
    assert "Something else" not in found.advice
    found = imbalance.find(evidence(tmp_path / "b", steps=workers(0.01, slow=0.03), samples=told(0.4)))
    assert found is not None
    assert "Something else runs on its cores" in found.advice


def test_imbalance_is_silent(tmp_path):
    assert imbalance.find(evidence(tmp_path / "a", steps=workers(0.02), workers=2)) is None
    assert imbalance.find(evidence(tmp_path / "b", steps=workers(0.02, slow=0.03)[:1])) is None


def test_gloo_on_gpus_is_named(tmp_path):
    steps = workers(0.02)
    found = gloo_on_gpus.find(evidence(tmp_path, busy, steps=steps, workers=2, facts=Facts(threads=1, backend="gloo")))
    assert found is not None
    assert found.predicted_gain == pytest.approx(100 / (100 - 20 * 7 / 8), rel=0.02)


@pytest.mark.parametrize("why", ["nccl", "one worker", "no GPU"])
def test_gloo_on_gpus_is_silent(tmp_path, why):
    told = Facts(threads=1, backend="auto" if why == "nccl" else "gloo")
    body = busy if why != "no GPU" else None
    count = 1 if why == "one worker" else 2
    assert gloo_on_gpus.find(evidence(tmp_path, body, steps=workers(0.02)[:count], workers=count, facts=told)) is None


# -- steps -------------------------------------------------------------------------------------------------------------


def test_steps_that_vary_are_named_with_the_part_that_grows(tmp_path):
    steps = [step(k, 0.3 if k % 5 == 0 else 0.1, data=0.21 if k % 5 == 0 else 0.01) for k in range(1, 60)]
    found = varying_steps.find(evidence(tmp_path, steps=[steps]))
    assert found is not None
    assert figures(found)["phase that grows"] == "data"
    assert found.predicted_gain == pytest.approx(1.4, rel=0.05)


def test_steps_that_vary_in_a_script_that_distributes_itself_name_no_phase(tmp_path):
    steps = [step(k, 0.3 if k % 5 == 0 else 0.1) for k in range(1, 60)]
    for one in steps:
        one.split = False
    found = varying_steps.find(evidence(tmp_path, steps=[steps]))
    assert found.title.endswith(", the median step 100 ms")
    assert figures(found)["phase that grows"] == "not measured"
    assert "the record" not in found.advice


def test_varying_steps_is_silent(tmp_path):
    draw = random.Random(1)
    steady = [step(k, 0.1 + draw.uniform(-0.005, 0.005)) for k in range(1, 60)]
    assert varying_steps.find(evidence(tmp_path / "a", steps=[steady])) is None
    # Fewer samples take less, and a validation is no part of a step.
    odd = [step(k, 0.5 if k % 10 == 0 else 0.1, samples=999 if k % 10 == 0 else 64) for k in range(1, 60)]
    assert varying_steps.find(evidence(tmp_path / "b", steps=[odd])) is None
    validated = [step(k, 2.0 if k % 10 == 0 else 0.1, evaluation=1.9 if k % 10 == 0 else 0.0) for k in range(1, 60)]
    assert varying_steps.find(evidence(tmp_path / "c", steps=[validated])) is None


def test_validation_is_named(tmp_path):
    steps = [step(k, 1.0 if k % 10 == 0 else 0.1, evaluation=0.9 if k % 10 == 0 else 0.0) for k in range(1, 41)]
    found = validation.find(evidence(tmp_path / "a", steps=[steps]))
    assert found is not None
    assert found.predicted_gain == pytest.approx(7.5 / (7.5 - 1.8), rel=0.01)
    seldom = [step(k, 1.0 if k == 30 else 0.1, evaluation=0.9 if k == 30 else 0.0) for k in range(1, 41)]
    assert validation.find(evidence(tmp_path / "b", steps=[seldom])) is None


def test_saving_is_named_with_its_line(tmp_path):
    saves = [SaveFacts(step=k, seconds=0.5, line="train.py:80") for k in (10, 20)]
    steps = [[step(k) for k in range(1, 40)]]
    found = checkpoints.find(evidence(tmp_path / "a", steps=steps, facts=Facts(threads=1, seconds=4.0, saves=saves)))
    assert found is not None
    assert found.where == "train.py:80"
    assert found.predicted_gain == pytest.approx(4 / 3.1, rel=0.01)
    for seconds, told in ((400.0, saves), (4.0, [])):
        silent = Facts(threads=1, seconds=seconds, saves=told)
        assert checkpoints.find(evidence(tmp_path / f"{seconds}", steps=steps, facts=silent)) is None


# -- on a CPU ----------------------------------------------------------------------------------------------------------


def on_cpu(machine: Machine) -> None:
    """9 ms in ops that are long enough to be shared out, 1 ms of the rest."""
    with machine.annotation("paceline.forward"):
        for _ in range(3):
            with machine.op("aten::mm", 3 * MS):
                pass
        for _ in range(100):
            with machine.op("aten::add", 10 * US):
                pass


CORES = {"cores": [{"id": n} for n in range(4)], "gpus": []}


def test_too_few_threads_are_named(tmp_path):
    found = threads.find(evidence(tmp_path, on_cpu, threads=1, topology=CORES))
    assert found is not None
    assert found.mod == "threads=4"
    assert found.predicted_gain == pytest.approx(10 / (1 + 9 / 4), rel=0.02)


def test_what_the_script_set_counts(tmp_path):
    found = threads.find(evidence(tmp_path, on_cpu, threads=4, topology=CORES, facts=Facts(threads=1)))
    assert found is not None


def test_too_many_threads_are_named(tmp_path):
    found = threads.find(evidence(tmp_path, on_cpu, threads=4, workers=2, topology=CORES))
    assert found is not None
    assert found.mod == "threads=2"


@pytest.mark.parametrize("why", ["fitting", "a device", "asked for"])
def test_threads_is_silent(tmp_path, why):
    body = busy if why == "a device" else on_cpu
    mods = ["threads=1"] if why == "asked for" else []
    count = 4 if why == "fitting" else 1
    assert threads.find(evidence(tmp_path, body, threads=count, topology=CORES, mods=mods)) is None


def test_input_on_a_cpu_and_its_silence(tmp_path):
    told = Facts(threads=1, loaders=[LoaderFacts(dataset="TensorDataset", tensors=True)])
    waiting = [[step(k, 0.1, data=0.04) for k in range(1, 40)]]
    found = input_bound.find(evidence(tmp_path / "a", steps=waiting, facts=told))
    assert found is not None
    assert found.mod == "resident"
    assert found.predicted_gain == pytest.approx(100 / 64, rel=0.01)
    little = [[step(k, 0.1, data=0.002) for k in range(1, 40)]]
    assert input_bound.find(evidence(tmp_path / "b", steps=little, facts=told)) is None
    # One that waits alone is slow by itself.
    alone = [*little, [step(k, 0.1, data=0.04) for k in range(1, 40)]]
    assert input_bound.find(evidence(tmp_path / "c", steps=alone, facts=told, workers=2)) is None


def test_loading_ahead_gains_nothing_where_all_cores_are_busy(tmp_path):
    told = Facts(threads=2, loaders=[LoaderFacts(dataset="Pictures")])
    waiting = [[step(k, 0.1, data=0.04) for k in range(1, 40)]]

    def found(used: float, folder: str):
        own = [WorkerSample(rank=0, cpu=used, memory=1, children=0)]
        return input_bound.find(
            evidence(tmp_path / folder, steps=waiting, facts=told, samples=[sample(workers=own)], threads=2)
        )

    saturated, idle = found(2.0, "a"), found(1.2, "b")
    assert saturated is not None
    assert idle is not None
    assert saturated.mod == ""
    assert idle.mod == "loader=1"
    assert idle.predicted_gain == pytest.approx(100 / 60, rel=0.01)


def test_an_optimizer_on_a_cpu(tmp_path):
    told = Facts(threads=1, optimizers=[OptimizerFacts(name="Adam", tensors=8)])
    steps = [[step(k, 0.1, optimizer=0.02) for k in range(1, 40)]]
    found = optimizer_step.find(evidence(tmp_path, steps=steps, facts=told))
    assert found is not None
    assert found.predicted_gain == pytest.approx(100 / (80 + 20 / 4.5), rel=0.01)
    told.optimizers[0] = OptimizerFacts(name="SGD", tensors=8, momentum=False)
    assert optimizer_step.find(evidence(tmp_path / "plain", steps=steps, facts=told)) is None


def pictures(pooling: int):
    """6 ms of convolutions, so much of pooling, 2 ms of the rest."""

    def body(machine: Machine) -> None:
        with machine.annotation("paceline.forward"):
            for name, host in (("mkldnn_convolution", 6 * MS), ("max_pool2d_with_indices", pooling), ("gelu", 2 * MS)):
                with machine.op(f"aten::{name}", host):
                    pass

    return body


def test_pooling_with_the_channel_first_on_a_cpu(tmp_path):
    told = Facts(threads=1, models=[ModelFacts(name="Net", parameters=1, bytes=4, convolutions=2)])
    found = channels_last.find(evidence(tmp_path / "a", pictures(6 * MS), facts=told))
    assert found is not None
    assert found.predicted_gain == pytest.approx(14 / (6 / 0.87 + 1 + 2), rel=0.02)
    assert channels_last.find(evidence(tmp_path / "b", pictures(1 * MS), facts=told)) is None
