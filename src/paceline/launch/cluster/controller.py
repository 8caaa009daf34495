"""`launch_on`: one run on several hosts, from the checks before it to the outcome after it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from paceline.errors import UsageError
from paceline.launch import placement
from paceline.launch.cluster import facts, preflight
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.backend import ClusterBackend
from paceline.launch.cluster.host_list import HostList
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.remote import Agents, RemoteHost
from paceline.launch.events import Event, Notice, Teller
from paceline.launch.interrupts import Signals, told_of_stops
from paceline.launch.local import excluded
from paceline.launch.outcome import going_on, outcome_of, recorded
from paceline.launch.restarts import with_restarts
from paceline.launch.versions import compared
from paceline.launch.watch import Watch
from paceline.record import Outcome, Run, WorkerInfo, write_run
from paceline.settings import RunSettings, hash_seed, module_path
from paceline.units import count
from paceline.wire.store import ROOM

STRANGERS = (
    "Strangers: {number} to the ports of this run came from processes that do not have its key, and were refused. Look "
    "who can reach the ports of the hosts."
)


def launch_on(
    run: RunSettings,
    backend: ClusterBackend,
    *,
    record: Path,
    on_event: Callable[[Event], None],
    interface: str | None = None,
    verb: str = "run",
) -> Outcome:
    """Runs the script on the workers of all hosts, `run.workers` in all, ranks host by host. As `launch`, and
    LaunchError with all problems if some hosts cannot be used."""
    if run.launch_as == "tensorflow":
        raise UsageError(
            "--as tensorflow runs on one host: TF_CONFIG names a port of each worker, which only that host knows.",
            advice="Leave the options about hosts out.",
        )
    host_list = HostList(backend, run.elastic, run.most)
    topology = {"hosts": [dataclasses.asdict(host) for host in host_list.hosts]}
    if run.launch_as is not None or excluded(run):
        run = dataclasses.replace(run, elastic=None)  # a lost host is done without by starting again

    def watched(entry: Run, signals: Signals, tell: Teller) -> Outcome:
        def attempt(run: RunSettings) -> Outcome:
            run = dataclasses.replace(run, workers=sum(host.workers for host in host_list.hosts))
            try:
                return _watched(run, backend, host_list, entry, signals, record.resolve(), tell, interface)
            finally:
                host_list.look_again(sys.exception())

        return with_restarts(run, record.resolve(), tell, attempt)

    with going_on(on_event) as tell:
        return recorded(run, record=record, verb=verb, topology=topology, watched=partial(watched, tell=tell))


def _watched(
    run: RunSettings,
    backend: ClusterBackend,
    host_list: HostList,
    entry: Run,
    signals: Signals,
    record: Path,
    on_event: Callable[[Event], None],
    interface: str | None,
) -> Outcome:
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        agents = Agents(len(host_list.hosts))
        stack.callback(agents.close)
        stack.enter_context(told_of_stops(agents.suspend, agents.resume))
        if run.most is not None:
            stack.enter_context(host_list.watched(lambda: agents.put(ROOM, b"")))
        hosts = _start(run, backend, host_list.hosts, agents, record, stack)
        notices, way = preflight.check(
            hosts,
            versions=compared(),
            digest="" if run.module else facts.digest(run.script),
            folder=os.getcwd(),
            script=run.script,
            interface=interface,
            patience=backend.patience,
            interrupted=lambda: bool(signals.came),
        )
        watch = stack.enter_context(
            Watch(
                run,
                hosts=hosts,
                signals=signals,
                record=record,
                on_event=on_event,
                put=agents.put,
                on_lost=lambda host: host_list.lose(host.name),
            )
        )
        watch.notices += notices
        for notice in notices:
            on_event(Notice(notice))
        watch.until(lambda: all(host.is_ready for host in hosts))
        if watch.interrupted is None:
            _prepare(run, hosts, way)
            watch.begin()
            told = [worker for host in hosts for worker in host.workers]
            entry.workers = msgspec.convert(told, list[WorkerInfo])
            write_run(record, entry)
        watch.until_swept()
        if number := agents.strangers + watch.strangers:
            strangers = STRANGERS.format(number=count(number, "connection"))
            watch.notices.append(strangers)
            on_event(Notice(strangers))
        return outcome_of(watch, record, time.monotonic() - begun)


def _start(
    run: RunSettings,
    backend: ClusterBackend,
    specs: Sequence[HostSpec],
    agents: Agents,
    record: Path,
    stack: contextlib.ExitStack,
) -> list[RemoteHost]:
    addresses = tuple(each.address for each in facts.interfaces())
    variables = {"PYTHONHASHSEED": hash_seed()} | ({"PYTHONPATH": path} if (path := module_path()) else {})
    hosts, first = [], 0
    for number, spec in enumerate(specs):
        boot = wire.Boot(
            number=number,
            addresses=(*addresses, "127.0.0.1"),
            port=agents.port,
            access=agents.access,
            script="" if run.module else run.script,
            folder=os.getcwd(),
        )
        handle = backend.start_agent(spec, variables, msgspec.json.encode(boot))
        hosts.append(RemoteHost(spec, number, first, agents=agents, handle=handle, record=record))
        stack.callback(hosts[-1].close)
        first += spec.workers
    return hosts


def _prepare(run: RunSettings, hosts: list[RemoteHost], way: preflight.Way | None) -> None:
    (port,) = placement.free_ports(1)
    terminal = tuple((stream, *os.get_terminal_size(stream)) for stream in (1, 2) if os.isatty(stream))
    own = [each.address for each in way.interfaces] if way is not None else ["127.0.0.1"]
    for host in hosts:
        host.begin = wire.Begin(
            run=run,
            first=host.ranks[0],
            workers=len(host.ranks),
            host=host.number,
            hosts=len(hosts),
            address=own[host.number],
            interface=way.interfaces[host.number].name if way is not None else "",
            master=own[0],
            master_port=port,
            terminal=terminal,
        )
