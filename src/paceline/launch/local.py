"""`launch`: one run, on this host, from the checks before it to the outcome after it."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.machinery
import importlib.util
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from paceline import options
from paceline.errors import UsageError
from paceline.launch import horovod_scripts, messages, placement
from paceline.launch.control import ControlChannel
from paceline.launch.events import Event, Notice, Teller
from paceline.launch.failures import limits, stall, texts
from paceline.launch.gpu_choice import choose_gpus
from paceline.launch.host import LocalHost
from paceline.launch.interrupts import Signals
from paceline.launch.outcome import going_on, outcome_of, recorded
from paceline.launch.restarts import with_restarts
from paceline.launch.scratch import remove_dead, scratch_folder
from paceline.launch.watch import Watch
from paceline.launch.zygote.handle import Zygote
from paceline.mods import catalog
from paceline.record import Outcome, Run, WorkerInfo, write_run
from paceline.record.about.origin import hide_secrets
from paceline.settings import TRACKERS, RunSettings
from paceline.strategies import catalog as strategies
from paceline.topology import Host, discover
from paceline.wire.store import LinkServer

_MOST_PER_CORE = 4


class OtherHosts(Protocol):
    """Workers that are not on this host: those of a series on several hosts."""

    def launch(
        self, run: RunSettings, *, record: Path, on_event: Callable[[Event], None], verb: str, limit: float | None
    ) -> Outcome: ...


def launch(
    run: RunSettings,
    *,
    zygote: Zygote | OtherHosts,
    record: Path,
    on_event: Callable[[Event], None],
    verb: str = "run",
    oversubscribe: bool = False,
    limit: float | None = None,
) -> Outcome:
    """Runs the script on `run.workers` workers. Returns when all workers and their child processes have ended. Workers
    that still run `limit` seconds after their start are stopped, and the run has failed. With the hosts of a series
    instead of a zygote, the workers are there.

    A script that fails raises no error here: the outcome holds the failure. Errors are a wrong option or record before
    a worker starts (UsageError, RecordError), and a zygote that cannot fork (LaunchError). A record that can no longer
    be written is told, once, and noted in the outcome; the script goes on. While the workers run, SIGINT and SIGTERM
    are passed on to them; that works only if `launch` is called from the main thread.
    """
    if not isinstance(zygote, Zygote):
        return zygote.launch(run, record=record, on_event=on_event, verb=verb, limit=limit)
    host = discover()
    check(run, host, oversubscribe=oversubscribe)
    placed = choose_gpus(run.workers, host)
    if placed is not None:
        host = placed.host
    dead = remove_dead()
    notices = [found.notice for found in (placed, dead) if found is not None]
    near = placed.near if placed else ()

    def watched(entry: Run, signals: Signals, tell: Teller) -> Outcome:
        for notice in notices:
            tell(Notice(notice))

        def attempt(run: RunSettings) -> Outcome:
            return _watched(
                run,
                host,
                entry,
                near,
                zygote=zygote,
                record=record.resolve(),
                signals=signals,
                on_event=tell,
                limit=limit,
            )

        outcome = with_restarts(run, record.resolve(), tell, attempt)
        outcome.notices[:0] = notices
        return outcome

    topology = dataclasses.asdict(host) | (placed.recorded if placed else {})
    with going_on(on_event) as tell:
        return recorded(run, record=record, verb=verb, topology=topology, watched=partial(watched, tell=tell))


def _check_mods(run: RunSettings) -> None:
    """UsageError if a mod contradicts an option."""
    for one in catalog.parse(run.mods):
        number = int(one.value.partition(":")[0]) if one.entry.name in ("workers", "threads") else 0
        if one.entry.name == "workers" and number != run.workers:
            raise UsageError(
                f"--mod workers={number} contradicts the number of workers of this run, {run.workers}.",
                advice=f"Leave the mod out, and type: -n {number}",
            )
        if one.entry.name == "threads" and run.threads not in (None, number):
            raise UsageError(
                f"--mod {one} contradicts --threads {run.threads}.", advice="Leave one of the two options out."
            )
        if one.entry.name == "emulate":
            _check_emulation(run, int(one.value))


def _check_emulation(run: RunSettings, emulated: int) -> None:
    """UsageError if N workers cannot be emulated with these options."""
    if run.batch == "scale":
        raise UsageError(
            f"--emulate {emulated} and --batch scale exclude each other: both multiply the batch.",
            advice="Leave --batch out.",
        )
    asked = [int(one.value) for one in catalog.parse(run.mods) if one.entry.name == "accumulate"]
    shared = run.workers * (asked[0] if asked else 1)
    if emulated % shared and shared % emulated:
        parts = f"{run.workers} worker{'s' * (run.workers > 1)}" + (f" in {asked[0]} micro-batches" if asked else "")
        raise UsageError(
            f"--emulate {emulated}: the emulated workers cannot be divided evenly between {parts}.",
            advice=f"Choose workers and micro-batches whose product divides {emulated}.",
        )


def _check_launcher(run: RunSettings) -> None:
    """UsageError if an option asks Paceline to change a script that distributes itself."""
    for typed in run.environment:
        name, sign, _ = typed.partition("=")
        if not sign or not name or "\0" in typed:
            raise UsageError(f"--env {typed}: a variable has a name and a value.", advice="Type: --env NAME=VALUE")
    if run.launch_as is None:
        return
    if run.launch_as == "horovod" and horovod_scripts.is_installed():
        raise UsageError(
            "--as horovod gives the script Paceline's own Horovod interface, but the real Horovod is installed here.",
            advice="Start the script with that Horovod's launcher, or type: pip uninstall horovod",
        )
    mods = [one for one in catalog.parse(run.mods) if one.entry.name not in ("workers", "threads")]
    asked = [*options.excluded(run, "--as"), *(f"--mod {one}" for one in mods)]
    if asked:
        raise UsageError(
            f"{asked[0]} and --as {run.launch_as} exclude each other: with --as, the script distributes itself and "
            "Paceline changes nothing.",
            advice="Leave one of the two options out.",
        )


def _check_strategy(run: RunSettings) -> None:
    """UsageError if the strategy needs another number of workers."""
    asked = strategies.parse(run.strategy)
    wanted = asked.workers
    if run.workers % asked.multiple and wanted is None:
        raise UsageError(
            f"--strategy {run.strategy} needs a multiple of {asked.multiple} workers, and the run has {run.workers}.",
            advice=f"Type: -n {max(run.workers // asked.multiple, 1) * asked.multiple}",
        )
    if wanted not in (None, run.workers):
        raise UsageError(
            f"--strategy {run.strategy} needs {wanted} worker{'s' * (wanted != 1)}, and the run has {run.workers}.",
            advice=f"Type: -n {wanted}",
        )


def _check_elastic(run: RunSettings) -> None:
    """UsageError if an elastic run cannot be had with the other options."""
    if run.elastic is None:
        return
    if run.elastic > run.workers:
        raise UsageError(
            f"--elastic {run.elastic}: start more than {run.elastic} workers (-n); the run has {run.workers}.",
            advice=f"Type: -n {run.elastic + 1}",
        )
    if run.most not in (None, run.workers):
        raise UsageError(
            f"--elastic {run.elastic}:{run.most}: the run has {run.workers} workers.", advice=f"Type: -n {run.most}"
        )
    for option in excluded(run):
        raise UsageError(f"--elastic and {option} exclude each other.", advice="Leave one of the two options out.")


def excluded(run: RunSettings) -> list[str]:
    """The options of this run with which workers cannot go on without a lost one."""
    membership = strategies.parse(run.strategy).entry.membership
    others = {
        "--strategy": membership != "shrink",
        "--as": run.launch_as not in (None, "horovod"),  # a Horovod script has an elastic state of its own
        "--timeline": run.timeline,
    }
    return [*(option for option, is_asked in others.items() if is_asked), *options.excluded(run, "--elastic")]


def check(run: RunSettings, host: Host, *, oversubscribe: bool) -> None:
    """UsageError if a run cannot be started with these settings."""
    if run.workers < 1:
        raise UsageError(f"-n {run.workers}: a run needs at least one worker.", advice="Type: -n 1")
    _check_elastic(run)
    _check_mods(run)
    _check_launcher(run)
    _check_strategy(run)
    most = _MOST_PER_CORE * host.usable_cores
    if run.workers > most and not oversubscribe:
        raise UsageError(
            f"-n {run.workers}: {host.name} has {host.usable_cores} cores, and more than {_MOST_PER_CORE} workers per "
            "core only wait for each other.",
            advice=f"Type -n {most} or less, or allow more workers with --oversubscribe.",
        )
    _check_texts(run)
    _check_trackers(run)
    limits.prove(run.workers)
    if run.module:
        top = run.script.partition(".")[0]
        # Like `python -m`, which searches the current folder first.
        if not importlib.machinery.PathFinder.find_spec(top, [os.getcwd()]) and not importlib.util.find_spec(top):
            raise UsageError(
                f"-m {run.script}: there is no module {top!r} in {os.getcwd()} or among the installed packages.",
                advice="Change to the folder that holds the package, and type the module's dotted name: "
                "-m package.train",
            )
    elif not Path(run.script).is_file():
        found = "it is a folder" if Path(run.script).is_dir() else "there is no such file"
        raise UsageError(
            f"The script {run.script!r} cannot be run: {found} (searched from {os.getcwd()}).",
            advice=_did_you_mean(Path(run.script)) or "Type the path of a Python file, or a module's name after -m.",
        )


def _check_trackers(run: RunSettings) -> None:
    """UsageError if a tracker is not known, or not installed. The script's folder is searched as well."""
    for name in run.track:
        if name not in TRACKERS:
            advice = " or ".join(f"--track {known}" for known in TRACKERS)
            raise UsageError(f"--track {name}: there is no such tracker.", advice=f"Type: {advice}")
        beside = [os.getcwd() if run.module else os.path.dirname(os.path.abspath(run.script))]
        if not importlib.machinery.PathFinder.find_spec(name, beside) and not importlib.util.find_spec(name):
            raise UsageError(f"--track {name}: {name} is not installed.", advice=f"Type: pip install {name}")


def _check_texts(run: RunSettings) -> None:
    """UsageError for a text that is not valid UTF-8: settings and records are JSON, which cannot hold such bytes."""
    for text in (run.script, *run.arguments, os.getcwd()):
        if texts.plain(text) != text:
            raise UsageError(
                f"{texts.plain(text)!r} (the script, an argument of it, or the current folder) is not valid UTF-8.",
                advice="Rename it, or pass it in a file that the script reads.",
            )


def _did_you_mean(path: Path) -> str:
    names = [script.name for script in path.parent.glob("*.py")]
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"Did you mean {path.with_name(close[0])}?" if close else ""


def _watched(
    run: RunSettings,
    host: Host,
    entry: Run,
    near: tuple[int | None, ...],
    *,
    zygote: Zygote,
    record: Path,
    signals: Signals,
    on_event: Callable[[Event], None],
    limit: float | None,
) -> Outcome:
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder(record))
        links = stack.enter_context(LinkServer(run.workers))
        channel = ControlChannel(Path(scratch))
        stack.callback(channel.close)
        speakers = 1 if run.elastic is None else run.workers
        pipes: dict[int, tuple[int, Literal["stdout", "stderr"]]] = {}
        theirs = []
        for rank in range(speakers):
            for stream in ("stdout", "stderr"):
                read, write = os.pipe()
                pipes[read] = rank, stream
                theirs.append(write)
        here = LocalHost(
            host.name,
            range(run.workers),
            zygote=zygote,
            channel=channel,
            pipes=pipes,
            warning=run.stall_warning,
            abort=stall.ABORT if run.stall_abort is None else run.stall_abort,
        )
        stack.callback(here.close)
        watch = stack.enter_context(
            Watch(run, hosts=[here], signals=signals, record=record, on_event=on_event, limit=limit, put=links.put)
        )
        with contextlib.ExitStack() as workers:
            for end in theirs:
                workers.callback(os.close, end)
            workers.callback(links.let_go)
            watch.until(lambda: zygote.ready is not None)
            if watch.interrupted is None and zygote.ready is not None:
                orders = _orders(run, host, near, zygote.ready.threads, record, channel)
                spawn = messages.Spawn(orders, os.getcwd(), scratch, speakers)
                here.prepare(spawn, [*theirs, *(end.fileno() for end in links.ends)])
                watch.begin()
                pids = watch.pids
                entry.workers = [describe_worker(order, pids[rank]) for rank, order in enumerate(orders) if pids]
                write_run(record, entry)
        watch.until_swept()
    return outcome_of(watch, record, time.monotonic() - begun)


def _orders(
    run: RunSettings,
    host: Host,
    near: tuple[int | None, ...],
    own_threads: int,
    record: Path,
    channel: ControlChannel,
) -> list[messages.SpawnOrder]:
    port, *ports = placement.free_ports(1 + run.workers * (run.launch_as == "tensorflow"))
    orders = []
    for worker in placement.place(run, host, own_threads=own_threads, near=near):
        settings = dataclasses.replace(
            worker,
            record=str(record),
            store_port=port,
            peers=tuple(f"127.0.0.1:{each}" for each in ports),
            control=channel.address,
            control_key=channel.key,
            token=channel.token,
            terminal=tuple((stream, *os.get_terminal_size(stream)) for stream in (1, 2) if os.isatty(stream)),
        )
        orders.append(messages.SpawnOrder(settings, placement.environment(settings)))
    return orders


def describe_worker(order: messages.SpawnOrder, pid: int) -> WorkerInfo:
    """A worker, as the record names it."""
    worker = order.settings
    return WorkerInfo(
        rank=worker.rank,
        host=worker.host,
        pid=pid,
        cores=list(worker.cores),
        threads=worker.threads,
        gpus=list(worker.gpus),
        environment=hide_secrets(order.environment),
    )
