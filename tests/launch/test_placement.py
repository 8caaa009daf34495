"""Which worker gets what."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import pytest

from paceline.launch.placement import environment, free_ports, place
from paceline.settings import LAUNCHER_VARIABLES, RunSettings
from paceline.topology import Core, Host


@pytest.fixture(autouse=True)
def no_wish_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def host(cores: int, *, siblings: int = 1, quota: float | None = None, gpus: int = 0) -> Host:
    made = [Core(id=i, node=i * 2 // cores, physical=(0, i // siblings)) for i in range(cores)]
    return Host(name="here", cores=tuple(made), quota=quota, gpus=tuple(str(i) for i in range(gpus)))


def run(workers: int, **settings: object) -> RunSettings:
    return RunSettings(script="train.py", workers=workers, **settings)  # type: ignore[arg-type]


def test_shares_are_equal_and_stay_on_a_node() -> None:
    workers = place(run(4), host(16), own_threads=16)
    assert [worker.cores for worker in workers] == [
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (8, 9, 10, 11),
        (12, 13, 14, 15),
    ]
    assert {worker.threads for worker in workers} == {4}


def test_all_cores_are_used_where_they_do_not_divide() -> None:
    workers = place(run(3), host(8), own_threads=8)
    assert [len(worker.cores) for worker in workers] == [2, 3, 3]
    assert sorted(core for worker in workers for core in worker.cores) == list(range(8))


def test_a_physical_core_gets_one_thread() -> None:
    workers = place(run(2), host(8, siblings=2), own_threads=4)
    assert [worker.cores for worker in workers] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [worker.threads for worker in workers] == [2, 2]


def test_a_lone_worker_is_left_as_plain_python_would_be() -> None:
    (worker,) = place(run(1), host(8), own_threads=5)
    assert (worker.cores, worker.threads) == ((), 5)
    assert environment(worker) == {"OMP_NUM_THREADS": "5"}


def test_as_torchrun_the_variables_are_torchruns() -> None:
    placed = place(run(2, launch_as="torchrun"), host(4, gpus=2), own_threads=4)[1]
    added = environment(dataclasses.replace(placed, record="runs/mine", store_port=1234))
    assert (added["RANK"], added["WORLD_SIZE"], added["LOCAL_RANK"], added["LOCAL_WORLD_SIZE"]) == ("1", "2", "1", "2")
    assert (added["GROUP_RANK"], added["GROUP_WORLD_SIZE"], added["ROLE_RANK"]) == ("0", "1", "1")
    assert (added["MASTER_ADDR"], added["MASTER_PORT"]) == ("127.0.0.1", "1234")
    assert (added["TORCHELASTIC_RUN_ID"], added["TORCHELASTIC_RESTART_COUNT"]) == ("mine", "0")
    assert "TORCHELASTIC_USE_AGENT_STORE" not in added, "no agent serves a store at that port"
    assert added["CUDA_VISIBLE_DEVICES"] == "0,1", "the script chooses by LOCAL_RANK"
    assert placed.gpus == ("1", "0")
    more = added.keys() - {"OMP_NUM_THREADS", "KMP_BLOCKTIME", "CUDA_VISIBLE_DEVICES"}
    assert more <= set(LAUNCHER_VARIABLES), "all of them are dropped where they are inherited"


def test_as_horovod_the_variables_are_horovodruns_and_the_script_chooses_its_gpu() -> None:
    placed = place(
        run(2, launch_as="horovod", environment=("A=b=c", "HOROVOD_CYCLE_TIME=5")), host(4, gpus=2), own_threads=4
    )
    added = environment(placed[1])
    assert (added["HOROVOD_RANK"], added["HOROVOD_SIZE"], added["HOROVOD_LOCAL_RANK"]) == ("1", "2", "1")
    assert (added["HOROVOD_CROSS_RANK"], added["HOROVOD_CROSS_SIZE"]) == ("0", "1")
    assert (added["CUDA_VISIBLE_DEVICES"], added["A"], added["HOROVOD_CYCLE_TIME"]) == ("0,1", "b=c", "5")
    more = {name for name in added if name.startswith("HOROVOD_")} - {"HOROVOD_CYCLE_TIME"}
    assert more <= set(LAUNCHER_VARIABLES), "all of them are dropped where they are inherited"
    assert "RANK" not in added


def test_as_horovod_keras_means_torch_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    [placed] = place(run(1, launch_as="horovod"), host(4), own_threads=4)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert environment(placed)["KERAS_BACKEND"] == "torch"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert "KERAS_BACKEND" not in environment(placed), "TensorFlow is installed"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert "KERAS_BACKEND" not in environment(placed), "the user's choice is inherited"


def test_as_tensorflow_and_as_jax_each_worker_knows_its_peers_and_sees_its_own_gpu() -> None:
    placed = place(run(2, launch_as="tensorflow"), host(4, gpus=2), own_threads=4)[1]
    added = environment(dataclasses.replace(placed, peers=("127.0.0.1:1", "127.0.0.1:2")))
    told = json.loads(added["TF_CONFIG"])
    assert told == {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 1}}
    assert added["CUDA_VISIBLE_DEVICES"] == "1"
    placed = place(run(2, launch_as="jax"), host(4, gpus=2), own_threads=4)[1]
    added = environment(dataclasses.replace(placed, store_port=1234))
    assert added["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:1234"
    assert (added["JAX_NUM_PROCESSES"], added["JAX_PROCESS_ID"], added["CUDA_VISIBLE_DEVICES"]) == ("2", "1", "1")
    assert (added["OMPI_COMM_WORLD_SIZE"], added["OMPI_COMM_WORLD_RANK"]) == ("2", "1"), "JAX reads these"
    assert "RANK" not in added


def test_more_workers_than_cores_go_round() -> None:
    workers = place(run(5), host(2), own_threads=2)
    assert [worker.cores for worker in workers] == [(0,), (1,), (0,), (1,), (0,)]
    assert {worker.threads for worker in workers} == {1}


def test_a_quota_limits_threads() -> None:
    assert {worker.threads for worker in place(run(2), host(64, quota=8.0), own_threads=64)} == {4}


def test_the_user_decides_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {w.threads for w in place(run(2, threads=1), host(8), own_threads=8)} == {1}
    many = place(run(2, threads=6), host(8), own_threads=8)
    assert {(w.threads, w.cores) for w in many} == {(6, ())}, "six threads don't fit on four cores"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert {w.threads for w in place(run(2), host(8), own_threads=8)} == {2}


def test_a_worker_sees_its_own_gpu_first_and_the_others_behind_it() -> None:
    workers = place(run(3), host(4, gpus=3), own_threads=4)
    assert [worker.gpus for worker in workers] == [("0", "1", "2"), ("1", "2", "0"), ("2", "0", "1")]
    assert environment(workers[1])["CUDA_VISIBLE_DEVICES"] == "1,2,0"
    shared = place(run(2), host(4, gpus=1), own_threads=4)
    assert [worker.gpus for worker in shared] == [("0",), ("0",)]
    assert "CUDA_VISIBLE_DEVICES" not in environment(place(run(1), host(2), own_threads=2)[0])


def test_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20


def test_workers_that_share_a_gpu_under_nccl_are_hosts_of_their_own() -> None:
    """NCCL refuses two workers of one host on one GPU."""
    shared = place(run(2, backend="nccl"), host(2, gpus=1), own_threads=2)
    assert [environment(worker).get("NCCL_HOSTID") for worker in shared] == ["paceline-0", "paceline-1"]
    apart = place(run(2, backend="nccl"), host(2, gpus=2), own_threads=2)
    assert [environment(worker).get("NCCL_HOSTID") for worker in apart] == [None, None]
