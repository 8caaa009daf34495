"""Which GPUs a run with fewer workers than GPUs gets."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from launched import Play

from paceline.launch.gpu_choice import Placed, choose_gpus
from paceline.launch.placement import environment, place
from paceline.record import read_run
from paceline.settings import RunSettings
from paceline.topology import Core, Host
from paceline.topology.machine import Topology
from paceline.topology.reading import read_file

TEXTS = Path(__file__).parents[1] / "topology" / "texts"


@pytest.fixture(autouse=True)
def no_wish_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def dgx_1() -> Topology:
    bare = read_file(TEXTS / "dgx1.txt")
    named = tuple(msgspec.structs.replace(gpu, uuid=f"GPU-{gpu.index}abc", name="V100") for gpu in bare.devices)
    return msgspec.structs.replace(bare, devices=named)


def host(gpus: tuple[str, ...] = tuple("01234567")) -> Host:
    """Two nodes of eight cores."""
    return Host(name="here", cores=tuple(Core(id=i, node=i // 8, physical=(i // 8, i)) for i in range(16)), gpus=gpus)


def placed(workers: int, on: Host) -> Placed:
    found = choose_gpus(workers, on, look=dgx_1)
    assert found is not None
    return found


def test_two_workers_get_the_pair_with_two_nvlinks_and_the_cores_next_to_it() -> None:
    found = placed(2, host())
    assert found.notice.startswith("2 workers on GPUs 0, 3, chosen from 8: joined by 2 NVLinks")
    run = RunSettings(script="train.py", workers=2)
    workers = place(run, found.host, own_threads=16, near=found.near)
    assert [worker.gpus[0] for worker in workers] == ["0", "3"]
    for worker in workers:
        assert sorted(worker.gpus) == list("01234567"), "the others stay behind it: peer-to-peer paths stay open"
    assert [worker.cores for worker in workers] == [(0, 1, 2, 3), (4, 5, 6, 7)], "both GPUs hang on node 0"
    assert environment(workers[1])["CUDA_VISIBLE_DEVICES"].startswith("3,")


def test_workers_on_two_nodes_get_the_cores_of_each() -> None:
    found = placed(5, host())
    nodes = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}
    workers = place(RunSettings(script="train.py", workers=5), found.host, own_threads=16, near=found.near)
    for worker in workers:
        assert {core // 8 for core in worker.cores} == {nodes[int(worker.gpus[0])]}
    cores = [core for worker in workers for core in worker.cores]
    assert len(cores) == len(set(cores)) == 16


def test_where_a_node_has_too_few_cores_they_are_shared_as_before() -> None:
    bare = Host(name="here", cores=tuple(Core(id=i, node=1, physical=(0, i)) for i in range(4)), gpus=host().gpus)
    found = placed(2, bare)
    workers = place(RunSettings(script="train.py", workers=2), found.host, own_threads=4, near=found.near)
    assert [worker.cores for worker in workers] == [(0, 1), (2, 3)]


def test_the_users_own_choice_of_gpus_is_chosen_among() -> None:
    found = placed(2, host(("7", "1", "4")))
    assert found.host.gpus == ("4", "7", "1")
    assert "GPUs 4, 7, chosen from 3" in found.notice
    by_identifier = placed(2, host(("GPU-1", "GPU-7abc", "GPU-4ab")))
    assert by_identifier.host.gpus == ("GPU-4ab", "GPU-7abc", "GPU-1")


def test_the_choice_is_small_and_plain_in_the_record() -> None:
    recorded = placed(2, host()).recorded
    assert recorded["choice"]["devices"] == (0, 3)
    assert {"a": 0, "b": 3, "kind": "NV2", "gb_per_s": 48.0, "p2p": None} in recorded["links"]
    assert len(msgspec.json.encode(recorded)) < 4096


@pytest.mark.parametrize("workers", [1, 8, 9])
def test_where_there_is_nothing_to_choose_nobody_looks(workers: int) -> None:
    def look() -> Topology:
        raise AssertionError("looked")

    assert choose_gpus(workers, host(), look=look) is None
    assert choose_gpus(2, host(()), look=look) is None


@pytest.mark.parametrize("gpus", [("0", "1", "9"), ("MIG-1", "MIG-2", "MIG-3"), ("0", "0", "1")])
def test_gpus_that_are_not_known_are_taken_as_they_come(gpus: tuple[str, ...]) -> None:
    assert choose_gpus(2, host(gpus), look=dgx_1) is None
    assert choose_gpus(2, host(gpus), look=Topology) is None


def test_gpus_of_different_models_are_taken_as_they_come() -> None:
    """CUDA numbers them by speed, the driver by bus."""

    def mixed() -> Topology:
        first, *rest = dgx_1().devices
        return msgspec.structs.replace(dgx_1(), devices=(msgspec.structs.replace(first, name="A100"), *rest))

    assert choose_gpus(2, host(), look=mixed) is None


def test_a_machine_without_gpus_does_not_pay() -> None:
    code = (
        "import sys; from paceline.launch.gpu_choice import choose_gpus; from paceline.topology import discover\n"
        "assert choose_gpus(2, discover()) is None\n"
        "print(sorted({'pynvml', 'paceline.topology.gpus', 'paceline.topology.survey'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_run_is_placed_by_it_and_says_so(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    monkeypatch.setattr("paceline.launch.local.choose_gpus", functools.partial(choose_gpus, look=dgx_1))
    launched = play("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert launched.output() == "0,3,1,2,4,5,6,7\n"
    assert launched.log(1) == "3,1,2,4,5,6,7,0\n"
    [notice] = launched.notices
    assert notice.startswith("2 workers on GPUs 0, 3, chosen from 8: joined by 2 NVLinks")
    run = read_run(launched.record)
    assert run.topology["choice"]["devices"] == [0, 3]
    assert run.outcome is not None
    assert run.outcome.notices == [notice]
