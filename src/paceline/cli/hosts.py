"""The hosts that options, a scheduler or MPI ask for: the backend that reaches them, and a series of runs there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import typer

from paceline.cli.options import HostOptions
from paceline.cli.session import Session
from paceline.cli.terminal import stderr
from paceline.errors import PacelineError, UsageError
from paceline.launch import check
from paceline.launch.cluster import mpi
from paceline.launch.cluster.backend import ClusterBackend
from paceline.launch.cluster.hosts import HostSpec, filled, parse, read
from paceline.launch.cluster.kept_hosts import KeptHosts
from paceline.launch.cluster.ray_cluster import RayHosts
from paceline.launch.cluster.rendezvous import JoinRequest, Meeting, Member, derive, meet, parse_place, read_secret
from paceline.launch.cluster.slurm import allocated, is_here, workers_of
from paceline.launch.cluster.ssh import FoundHosts, SshHosts
from paceline.launch.interrupts import exit_code_of
from paceline.launch.placement import free_ports
from paceline.settings import (
    MpiProcess,
    RunSettings,
    SlurmAllocation,
    in_ray_job,
    mpi_process,
    slurm_allocation,
    slurm_step,
)
from paceline.topology import discover
from paceline.units import count

MAY_DIFFER = ("workers", "seed", "share_record")  # between the commands of a rendezvous: the controller's counts


@contextlib.contextmanager
def cluster_of(
    session: Session, asked: HostOptions, settings: RunSettings, workers: int | None, own: int
) -> Iterator[tuple[ClusterBackend | None, int]]:
    """The hosts that the user has asked for, None: this host alone; and the number of workers. `workers` is the number
    that was typed, `own` this host's if none was. A process that another one controls ends here, with the exit code of
    the run."""
    names_hosts = (asked.hosts, asked.hostfile, asked.discover) != (None, None, None)
    process = mpi_process() if asked.on in (None, "mpi") and not names_hosts else None
    step = slurm_step() if asked.on is None and asked.rendezvous is None else None
    if process is not None and step is not None:
        yield _of_step(step, workers, process)
    elif process is not None:
        with _under_mpi(session, asked, settings, workers, process) as found:
            yield found
    elif asked.rendezvous is not None:
        with _met(session, _rendezvous(asked, settings, workers, own)) as meeting:
            yield meeting, total(meeting)
    elif asked.on == "ray" or (asked.on is None and not names_hosts and in_ray_job()):
        _refuse_stray(asked)
        with contextlib.closing(RayHosts(own if workers is None else workers)) as cluster:
            yield cluster, total(cluster)
    else:
        _refuse_stray(asked)
        yield _placed(asked, workers, own, settings.most)


def on_hosts(session: Session, asked: HostOptions, settings: RunSettings, workers: int | None, own: int) -> int:
    """The number of workers of a series of runs, as `cluster_of`. On several hosts, their agents are the workers of the
    session until the verb ends, and stay there from one run to the next."""
    cluster, number = session.resources.enter_context(cluster_of(session, asked, settings, workers, own))
    if cluster is not None:
        session.hosts = session.resources.enter_context(KeptHosts(cluster, asked.interface))
    return number


def _placed(asked: HostOptions, workers: int | None, own: int, most: int | None) -> tuple[ClusterBackend | None, int]:
    """Hosts that this process starts agents on by itself. `most` is the MAX of --elastic."""
    if asked.discover is not None and (asked.hosts or asked.hostfile):
        raise UsageError("--discover and --hosts exclude each other.", advice="Leave one of the two options out.")
    if asked.discover is not None:
        return (live := _found(asked.discover, asked.ssh, workers, most)), total(live)
    listed = listed_hosts(asked.hosts, asked.hostfile, workers)
    allocation = slurm_allocation()
    if listed is not None:
        return (backend := SshHosts(listed, asked.ssh)), total(backend)
    if asked.on == "mpi" or (asked.on == "slurm" and allocation is None):
        found, start = (
            ("was not started by mpirun", "mpirun -np 4 paceline run train.py")
            if asked.on == "mpi"
            else ("does not run in a Slurm allocation", "salloc --nodes 2")
        )
        raise UsageError(f"--on {asked.on}: this command {found}.", advice=f"Type: {start}")
    if allocation is None or asked.on == "local":
        return None, own if workers is None else workers
    if is_here(allocation):
        return None, max(own, *workers_of(allocation)) if workers is None else workers
    return (nodes := allocated(allocation, workers)), total(nodes)


def _found(program: str, ssh: str, workers: int | None, most: int | None) -> FoundHosts:
    """The hosts that a program finds, with the number of workers that was typed, if one was."""
    if workers is not None and most not in (None, workers):
        raise UsageError(
            f"-n {workers} contradicts --elastic, by which the run has up to {count(most, 'worker')}.",
            advice="Leave -n out.",
        )
    found = FoundHosts((), ssh, program=program, most=most if workers is None else workers)
    if workers is not None and most is None and (there := total(found)) < workers:
        raise UsageError(
            f"-n {workers}: the hosts that --discover {program} finds have {count(there, 'worker')}.",
            advice=f"Type -n {there} or less, or leave -n out.",
        )
    return found


def _of_step(step: SlurmAllocation, workers: int | None, process: MpiProcess) -> tuple[ClusterBackend, int]:
    """The nodes of an srun on several: its first task starts agents there, as in an allocation; the others end here.
    Unlike processes of mpirun, tasks of srun may have no way to talk to each other."""
    if process.rank:
        raise typer.Exit(0)
    return (nodes := allocated(step, workers)), total(nodes)


@contextlib.contextmanager
def _under_mpi(
    session: Session, asked: HostOptions, settings: RunSettings, workers: int | None, process: MpiProcess
) -> Iterator[tuple[ClusterBackend | None, int]]:
    """Rank 0, and the first process of every other host, go on; all others end here."""
    if workers not in (None, process.size):
        raise UsageError(
            f"-n {workers} contradicts mpirun, which has started {count(process.size, 'process')}.",
            advice="Leave -n out.",
        )
    several = process.local_size < process.size
    told = mpi.Told(process, *free_ports(1)) if several and asked.rendezvous is None else None
    if process.local_rank != 0:
        raise typer.Exit(mpi.follow(process, asked.wait))
    followers = mpi.Followers(process)
    with ending(followers.finish):
        if told is not None:
            meant = JoinRequest(
                host="" if process.rank == 0 else told.reachable(asked.wait),
                port=told.port,
                nodes=told.nodes,
                keys=derive(told.secret),
                node=told.node,
                own=process.local_size,
                same=_same(settings),
                wait=asked.wait,
            )
        elif asked.rendezvous is not None:
            meant = _rendezvous(asked, settings, None, process.local_size)
        else:
            yield None, process.size
            return
        with _met(session, meant) as meeting:
            yield meeting, total(meeting)


def total(backend: ClusterBackend) -> int:
    """The number of workers on all hosts."""
    return sum(host.workers for host in backend.hosts())


@contextlib.contextmanager
def _met(session: Session, meant: JoinRequest) -> Iterator[Meeting]:
    def tell(text: str) -> None:
        if not session.quiet:
            stderr().print(f"paceline: {text}", soft_wrap=True)

    meeting = meet(meant, tell)
    if isinstance(meeting, Member):
        raise typer.Exit(meeting.serve())
    with ending(meeting.finish):
        yield meeting


@contextlib.contextmanager
def ending(finish: Callable[[int, str], None]) -> Iterator[None]:
    """Passes the exit code of this command on, however it ends."""
    try:
        yield
    except typer.Exit as end:
        finish(end.exit_code, "")
        raise
    except KeyboardInterrupt as error:
        finish(exit_code_of(error), "it was interrupted.")
        raise
    except PacelineError as error:
        finish(2 if isinstance(error, UsageError) else 1, error.message)
        raise
    except BaseException:
        finish(1, "")
        raise
    finish(0, "")


def _rendezvous(asked: HostOptions, settings: RunSettings, workers: int | None, own: int) -> JoinRequest:
    assert asked.rendezvous is not None
    other = next((name for name in ("hosts", "hostfile", "discover") if getattr(asked, name) is not None), None)
    if other is not None:
        raise UsageError(f"--rendezvous and --{other} exclude each other.", advice="Leave one of the two options out.")
    host, port = parse_place(asked.rendezvous)
    if asked.nodes is None:
        raise UsageError("--rendezvous needs the number of hosts.", advice="Type: --nodes N")
    if asked.node_rank is not None and asked.node_rank >= asked.nodes:
        raise UsageError(
            f"--node-rank {asked.node_rank}: --nodes {asked.nodes} has the numbers 0 to {asked.nodes - 1}.",
            advice=f"Type a number from 0 to {asked.nodes - 1}.",
        )
    if workers is not None:
        if workers < asked.nodes:
            raise UsageError(
                f"-n {workers} is too few for {count(asked.nodes, 'host')}: -n is the number of workers on all hosts.",
                advice=f"Type: -n {asked.nodes} or more",
            )
        check(
            replace(settings, workers=workers), discover(), oversubscribe=True
        )  # a mistake is told of before others come
    return JoinRequest(
        host=host,
        port=port,
        nodes=asked.nodes,
        keys=derive(read_secret(asked.secret)),
        node=asked.node_rank,
        workers=workers,
        own=own,
        same=_same(settings) | {"--nodes": str(asked.nodes), "-n": str(workers)},
        wait=asked.wait,
    )


def _same(settings: RunSettings) -> dict[str, str]:
    return {
        field.name: str(getattr(settings, field.name)) for field in fields(settings) if field.name not in MAY_DIFFER
    }


def _refuse_stray(asked: HostOptions) -> None:
    for name in ("nodes", "node_rank", "secret"):
        if getattr(asked, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} is an option of a rendezvous, and there is no --rendezvous.",
                advice="Type --rendezvous HOST:PORT, or leave the option out.",
            )


def listed_hosts(typed: str | None, file: Path | None, workers: int | None) -> list[HostSpec] | None:
    """The hosts that the user has named; None: this host alone."""
    if typed is not None and file is not None:
        raise UsageError("--hosts and --hostfile exclude each other.", advice="Leave one of the two options out.")
    if typed is None and file is None:
        return None
    found = parse(typed) if typed is not None else read(file)  # type: ignore[arg-type]
    typed_in_all = sum(host.workers for host in found)
    if workers is not None and workers > typed_in_all:
        raise UsageError(
            f"-n {workers}: the hosts have {count(typed_in_all, 'worker')} in all.",
            advice=f"Type -n {typed_in_all} or less, or more workers a host: --hosts {found[0].name}:{workers}",
        )
    return found if workers is None else list(filled(found, workers))
