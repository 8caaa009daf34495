"""Rules about a device: where each must speak, with which prediction, and where it must be silent."""

from __future__ import annotations

import pytest
from cuda_trace import Machine
from made import FLOATS, HALF, HALVES, MS, TF32, US, evidence, figures, loading, products, reading, small, step

from paceline.advise.rules import input_bound, mixed_precision, small_kernels, tf32, waiting_lines
from paceline.record.facts import Facts, LoaderFacts

TENSORS = Facts(threads=1, loaders=[LoaderFacts(batch=64, samples=1000, dataset="TensorDataset", tensors=True)])


def end(machine: Machine) -> None:
    """The step ends when the device has done its work, as steps do in the mean of many."""
    machine.synchronize()


def half_products_half_rest(machine: Machine) -> None:
    products(machine, count=10)
    for _ in range(10):
        machine.launch("void softmax_warp_forward", 1 * MS)
    end(machine)


# -- mixed precision ---------------------------------------------------------------------------------------------------


def test_products_in_float32_are_named_and_the_gain_is_what_amdahl_says(tmp_path):
    found = mixed_precision.find(evidence(tmp_path, half_products_half_rest))
    assert found is not None
    assert found.mod == "precision=bf16"
    assert figures(found)["products in float32 on ordinary cores"] == pytest.approx(0.010, rel=0.01)
    assert found.predicted_gain == pytest.approx(20 / (10 + 10 / 6), rel=0.05)


def test_tf32_products_gain_less(tmp_path):
    found = mixed_precision.find(evidence(tmp_path, lambda m: (products(m, TF32), end(m))))
    assert found is not None
    assert found.predicted_gain == pytest.approx(1.7, rel=0.05)


def test_mixed_precision_gains_nothing_where_the_host_decides(tmp_path):
    def body(machine: Machine) -> None:
        products(machine, count=20, each=10 * US)
        small(machine, 300, host=30 * US)

    found = mixed_precision.find(evidence(tmp_path, body))
    assert found is not None
    assert found.predicted_gain == pytest.approx(1.0, abs=0.12)
    assert "waits for the host" in found.advice


@pytest.mark.parametrize("why", ["half already", "asked for", "no products", "no device"])
def test_mixed_precision_is_silent(tmp_path, why):
    bodies = {
        "half already": lambda m: (products(m, HALF, **HALVES), end(m)),
        "asked for": half_products_half_rest,
        "no products": lambda m: (small(m, 50, each=50 * US), end(m)),
        "no device": lambda m: m.work(MS),
    }
    mods = ["precision=bf16"] if why == "asked for" else []
    assert mixed_precision.find(evidence(tmp_path, bodies[why], mods=mods)) is None


# -- TF32 --------------------------------------------------------------------------------------------------------------


def test_tf32_off_is_named(tmp_path):
    found = tf32.find(evidence(tmp_path, half_products_half_rest))
    assert found is not None
    assert found.mod == "tf32"
    assert found.predicted_gain == pytest.approx(20 / (10 + 10 / 4), rel=0.05)


@pytest.mark.parametrize(("kernel", "args", "mods"), [(TF32, FLOATS, []), (HALF, HALVES, []), (None, FLOATS, ["tf32"])])
def test_tf32_is_silent(tmp_path, kernel, args, mods):
    def body(machine: Machine) -> None:
        products(machine, **({"kernel": kernel} if kernel else {}), **args)
        end(machine)

    assert tf32.find(evidence(tmp_path, body, mods=mods)) is None


# -- small kernels -----------------------------------------------------------------------------------------------------


def test_many_small_kernels_are_named(tmp_path):
    def body(machine: Machine) -> None:
        with machine.annotation("paceline.forward"):
            small(machine, 400, each=4 * US, host=16 * US)  # 20 µs of the host each

    found = small_kernels.find(evidence(tmp_path, body))
    assert found is not None
    assert found.mod == "cuda_graphs"
    assert figures(found)["kernels"] == 400
    # 8 ms of launching become 0.8, and the device needs 1.6 ms and what lies between kernels.
    assert 2.5 < found.predicted_gain < 5.5


@pytest.mark.parametrize("why", ["large kernels", "the device keeps up", "asked for"])
def test_small_kernels_is_silent(tmp_path, why):
    def body(machine: Machine) -> None:
        if why == "large kernels":
            for _ in range(5):
                machine.work(2 * MS)
                machine.launch("large", 1 * MS)
        elif why == "the device keeps up":
            small(machine, 300, each=8 * US, host=1 * US)
            end(machine)
        else:
            small(machine, 300)

    mods = ["cuda_graphs"] if why == "asked for" else []
    assert small_kernels.find(evidence(tmp_path, body, mods=mods)) is None


# -- lines that wait ---------------------------------------------------------------------------------------------------


def with_item(machine: Machine) -> None:
    """4 ms of loading, then 10 ms of the device, which the script's line waits for."""
    loading(machine, 4 * MS)
    products(machine)
    reading(machine)


def test_a_line_that_waits_is_named_with_what_it_costs(tmp_path):
    found = waiting_lines.find(evidence(tmp_path, with_item))
    assert found is not None
    assert found.where == "/home/me/train.py:66"
    assert found.title.startswith("train.py:66 (item)")
    assert figures(found)["/home/me/train.py:66 (item)"] == pytest.approx(0.010, rel=0.05)
    # Without the wait the next batch is loaded while the device computes: 14 ms become 10.
    assert found.predicted_gain == pytest.approx(1.4, rel=0.05)


def test_lines_that_wait_is_silent_without_a_line_or_where_it_is_seldom(tmp_path):
    assert waiting_lines.find(evidence(tmp_path / "a", half_products_half_rest)) is None
    calls = iter(range(100))

    def seldom(machine: Machine) -> None:
        products(machine)
        if next(calls) % 3 == 0:
            reading(machine)

    assert waiting_lines.find(evidence(tmp_path / "b", seldom)) is None
    assert waiting_lines.find(evidence(tmp_path / "c", lambda m: m.work(MS))) is None


# -- input, with a device ----------------------------------------------------------------------------------------------


def test_a_device_that_waits_for_input_wants_its_dataset_resident(tmp_path):
    found = input_bound.find(evidence(tmp_path, with_item, facts=TENSORS))
    assert found is not None
    assert found.mod == "resident"
    assert figures(found)["waiting for input"] == pytest.approx(0.004, rel=0.05)
    assert found.predicted_gain == pytest.approx(14 / 10.4, rel=0.05)


def test_a_dataset_that_is_no_tensor_wants_processes(tmp_path):
    facts = Facts(threads=1, loaders=[LoaderFacts(batch=64, samples=1000, dataset="Pictures")])
    cores = {"cores": [{"id": n} for n in range(8)], "gpus": ["0"]}
    found = input_bound.find(evidence(tmp_path, with_item, facts=facts, topology=cores))
    assert found is not None
    assert found.mod == "loader=2"
    assert found.predicted_gain == pytest.approx(1.4, rel=0.05)


@pytest.mark.parametrize(
    ("cpu", "mod", "others"),
    [
        (0.1, "loader=7", ["loader=fast", "loader=2", "loader=8"]),  # sleeps, or waits for a disk
        (0.9, "loader=1", ["loader=fast", "loader=2"]),  # computes, on both cores
    ],
)
def test_loading_that_waits_wants_more_processes_than_cores(tmp_path, cpu, mod, others):
    facts = Facts(threads=1, loading=10.0, loading_cpu=10 * cpu, loaders=[LoaderFacts(batch=64, dataset="Pictures")])
    steps = [[step(100 + k, 0.1, data=0.07) for k in range(20)]]
    found = input_bound.find(evidence(tmp_path, steps=steps, facts=facts))
    assert found is not None
    assert (found.mod, found.others) == (mod, others)
    assert ("more processes than cores" in found.advice) == (cpu < 0.5)
    assert figures(found)["share of loading that computes"] == pytest.approx(cpu)


def test_several_workers_are_not_offered_the_loader_for_one(tmp_path):
    facts = Facts(threads=1, loaders=[LoaderFacts(batch=64, dataset="Pictures")])
    steps = [[step(100 + k, 0.1, data=0.05) for k in range(20)] for _ in range(2)]
    found = input_bound.find(evidence(tmp_path, steps=steps, facts=facts, workers=2))
    assert "loader=fast" not in [found.mod, *found.others]


def test_processes_that_do_not_keep_up_want_to_be_more(tmp_path):
    facts = Facts(threads=1, loaders=[LoaderFacts(batch=64, samples=1000, dataset="Pictures", processes=5)])
    found = input_bound.find(evidence(tmp_path, with_item, facts=facts))
    assert found is not None
    assert not found.mod
    assert "num_workers=7" in found.advice


def test_input_that_is_hidden_is_not_spoken_of(tmp_path):
    def body(machine: Machine) -> None:
        products(machine)
        loading(machine, 4 * MS)  # while the device computes
        end(machine)

    assert input_bound.find(evidence(tmp_path, body, facts=TENSORS)) is None
