"""Which cores, threads, GPUs and environment variables each worker of one host gets."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path

from paceline.mods import catalog
from paceline.settings import RunSettings, WorkerSettings, asked_threads, keras_backend
from paceline.topology import Core, Host


def place(run: RunSettings, host: Host, *, own_threads: int, near: tuple[int | None, ...] = ()) -> list[WorkerSettings]:
    """The workers of a run on this host, in order of rank. `own_threads` is torch's default number of threads; `near`
    is the best NUMA node of each worker, if known."""
    asked = run.threads or _said_by_a_mod(run) or asked_threads()
    workers = []
    for rank, share in enumerate(_shares(host.cores, run.workers, near)):
        threads = asked or _threads(run.workers, host, share, own_threads)
        # A single worker is not pinned, as in plain Python. Neither is a worker with more threads than cores in its
        # share.
        pinned = run.workers > 1 and threads <= len(share)
        workers.append(
            WorkerSettings(
                run=run,
                record="",
                rank=rank,
                world=run.workers,
                local_rank=rank,
                local_world=run.workers,
                host=host.name,
                cores=tuple(core.id for core in share) if pinned else (),
                threads=threads,
                gpus=_rotated(host.gpus, rank),
            )
        )
    return workers


def environment(worker: WorkerSettings) -> dict[str, str]:
    """The variables that the launcher adds to a worker's environment, after it has dropped those of other launchers.
    The script finds its rank there only with `--as torchrun`."""
    added = {"OMP_NUM_THREADS": str(worker.threads)}
    if worker.interface:
        added |= {"GLOO_SOCKET_IFNAME": worker.interface, "NCCL_SOCKET_IFNAME": f"={worker.interface}"}
    if worker.run.launch_as == "torchrun":
        added |= _of_torchrun(worker)
    elif worker.run.launch_as == "horovod":
        added |= _of_horovodrun(worker)
    elif worker.run.launch_as == "tensorflow":
        task = {"cluster": {"worker": worker.peers}, "task": {"type": "worker", "index": worker.rank}}
        added["TF_CONFIG"] = json.dumps(task)
    elif worker.run.launch_as == "jax":
        added |= _of_jax(worker)
    if worker.world > 1:
        # Intel's OpenMP spins for 200 ms after each parallel region, which takes CPU time from other workers on the
        # core. OMP_PLACES and KMP_AFFINITY are not set: they bind the main thread, hence every loader process, to one
        # core, and the affinity mask already pins the worker.
        added["KMP_BLOCKTIME"] = "1"
    if worker.run.profile is not None:
        added["KINETO_LOG_LEVEL"] = "99"  # by default torch's profiler prints its start and stop on the terminal
    if worker.gpus:
        seen = worker.gpus
        if worker.run.launch_as in ("torchrun", "horovod"):  # the script chooses by local rank, from one list for all
            seen = _rotated(worker.gpus, -worker.local_rank)
        elif worker.run.launch_as is not None:  # TensorFlow and JAX take all that they see
            seen = worker.gpus[:1]
        added["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
    if worker.run.backend == "nccl" and len(worker.gpus) < worker.local_world:
        # NCCL refuses workers of one host that share a GPU. As hosts of their own they talk over sockets: slow, but
        # with the same calls as between many GPUs.
        added["NCCL_HOSTID"] = f"paceline-{worker.rank}"
    typed = (text.partition("=") for text in worker.run.environment)
    return added | {name: value for name, _, value in typed}


def _of_jax(worker: WorkerSettings) -> dict[str, str]:
    """JAX has variables of its own for the coordinator only; its rank and their number it takes from Open MPI's."""
    place = f"{worker.store_host}:{worker.store_port}"
    return {
        "JAX_COORDINATOR_ADDRESS": place,
        "JAX_LOCAL_DEVICE_IDS": "0",  # of those that the worker sees
        "JAX_NUM_PROCESSES": str(worker.world),
        "JAX_PROCESS_ID": str(worker.rank),
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{place}",
        "OMPI_COMM_WORLD_SIZE": str(worker.world),
        "OMPI_COMM_WORLD_RANK": str(worker.rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(worker.local_rank),
    }


def _of_torchrun(worker: WorkerSettings) -> dict[str, str]:
    """The variables that torchrun sets on one host. TORCHELASTIC_USE_AGENT_STORE is missing: no agent serves a store
    at MASTER_PORT, so a script that opens a store there itself must serve it on rank 0."""
    return {
        "RANK": str(worker.rank),
        "WORLD_SIZE": str(worker.world),
        "LOCAL_RANK": str(worker.local_rank),
        "LOCAL_WORLD_SIZE": str(worker.local_world),
        "GROUP_RANK": str(worker.host_rank),
        "GROUP_WORLD_SIZE": str(worker.hosts),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(worker.rank),
        "ROLE_WORLD_SIZE": str(worker.world),
        "MASTER_ADDR": worker.store_host,
        "MASTER_PORT": str(worker.store_port),
        "TORCHELASTIC_RUN_ID": Path(worker.record).name or "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _of_horovodrun(worker: WorkerSettings) -> dict[str, str]:
    """The variables by which scripts and launchers of Horovod know a worker. `hvd.init()` does not read them. Without
    TensorFlow, Keras's own default backend, a script for Horovod and Keras means torch's."""
    has_default = keras_backend() or importlib.util.find_spec("tensorflow") is not None
    return ({} if has_default else {"KERAS_BACKEND": "torch"}) | {
        "HOROVOD_RANK": str(worker.rank),
        "HOROVOD_SIZE": str(worker.world),
        "HOROVOD_LOCAL_RANK": str(worker.local_rank),
        "HOROVOD_LOCAL_SIZE": str(worker.local_world),
        "HOROVOD_CROSS_RANK": str(worker.host_rank),
        "HOROVOD_CROSS_SIZE": str(worker.hosts),
        "HOROVOD_HOSTNAME": worker.host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that no process listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _shares(cores: tuple[Core, ...], workers: int, near: tuple[int | None, ...]) -> list[tuple[Core, ...]]:
    """Each worker's cores: cores of its own NUMA node if every worker has a node with a core for each of its workers,
    else an equal part of all cores."""
    local = {node: tuple(core for core in cores if core.node == node) for node in set(near)}
    if len(near) != workers or any(node is None or len(local[node]) < near.count(node) for node in near):
        return [_share(cores, rank, workers) for rank in range(workers)]
    return [_share(local[node], near[:rank].count(node), near.count(node)) for rank, node in enumerate(near)]


def _share(cores: tuple[Core, ...], rank: int, workers: int) -> tuple[Core, ...]:
    """Adjacent cores, in shares that differ by one core at most. The list is ordered by NUMA node, so that few shares
    cross nodes."""
    if workers >= len(cores):
        return (cores[rank % len(cores)],)
    return cores[len(cores) * rank // workers : len(cores) * (rank + 1) // workers]


def _threads(workers: int, host: Host, share: tuple[Core, ...], own_threads: int) -> int:
    """One thread per physical core of the share, and no more than the control group allows."""
    if workers == 1:
        return own_threads
    physical = len({core.physical for core in share})
    return max(1, min(physical, host.usable_cores // workers))


def _said_by_a_mod(run: RunSettings) -> int | None:
    said = [one.value.partition(":")[0] for one in catalog.parse(run.mods) if one.entry.name == "threads"]
    return int(said[0]) if said else None


def _rotated(gpus: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """The worker's own GPU first, then the other GPUs, so that peer-to-peer paths stay open."""
    if not gpus:
        return ()
    own = rank % len(gpus)
    return gpus[own:] + gpus[:own]
