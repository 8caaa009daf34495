"""`launch_on`: one run on several hosts, from the checks before it to the outcome after it."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from paceline.errors import UsageError
from paceline.launch import placement
from paceline.launch.cluster.backend import ClusterBackend
from paceline.launch.cluster.crew import Crew
from paceline.launch.cluster.host_list import HostList
from paceline.launch.events import Event, Notice, Teller
from paceline.launch.interrupts import Signals, told_of_stops
from paceline.launch.local import excluded
from paceline.launch.outcome import going_on, outcome_of, recorded
from paceline.launch.restarts import with_restarts
from paceline.launch.watch import Watch
from paceline.record import Outcome, Run, WorkerInfo, write_run
from paceline.settings import RunSettings
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
    limit: float | None = None,
    crew: Callable[[RunSettings], contextlib.AbstractContextManager[Crew]] | None = None,
) -> Outcome:
    """Runs the script on the workers of all hosts, `run.workers` in all, ranks host by host. As `launch`, and
    LaunchError with all problems if some hosts cannot be used. `crew`: the agents of a series, which stay."""
    if run.launch_as == "tensorflow":
        raise UsageError(
            "--as tensorflow runs on one host: TF_CONFIG names a port of each worker, which only that host knows.",
            advice="Leave the options about hosts out.",
        )
    host_list = HostList(backend, run.elastic, run.most)
    words = [*backend.words(), *(["--interface", interface] if interface else [])]
    topology = {"hosts": [dataclasses.asdict(host) for host in host_list.hosts], "options": words}
    if run.launch_as is not None or excluded(run):
        run = dataclasses.replace(run, elastic=None)  # a lost host is done without by starting again

    def watched(entry: Run, signals: Signals, tell: Teller) -> Outcome:
        def attempt(run: RunSettings) -> Outcome:
            if crew is None:
                run = dataclasses.replace(run, workers=sum(host.workers for host in host_list.hosts))
            try:
                with crew(run) if crew is not None else Crew(backend, host_list.hosts, run, interface) as there:
                    return _watched(run, there, host_list, entry, signals, record.resolve(), tell, limit)
            finally:
                host_list.look_again(sys.exception())

        return with_restarts(run, record.resolve(), tell, attempt)

    with going_on(on_event) as tell:
        return recorded(run, record=record, verb=verb, topology=topology, watched=partial(watched, tell=tell))


def _watched(
    run: RunSettings,
    crew: Crew,
    host_list: HostList,
    entry: Run,
    signals: Signals,
    record: Path,
    on_event: Callable[[Event], None],
    limit: float | None,
) -> Outcome:
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(told_of_stops(crew.agents.suspend, crew.agents.resume))
        if run.most is not None:
            stack.enter_context(host_list.watched(lambda: crew.agents.put(ROOM, b"")))
        crew.check(lambda: bool(signals.came))
        notices = crew.take_notices()
        hosts = crew.assigned(run, record)
        watch = stack.enter_context(
            Watch(
                run,
                hosts=hosts,
                signals=signals,
                record=record,
                on_event=on_event,
                limit=limit,
                put=crew.agents.put,
                on_lost=lambda host: host_list.lose(host.name),
            )
        )
        watch.notices += notices
        for notice in notices:
            on_event(Notice(notice))
        watch.until(lambda: all(host.is_ready for host in hosts))
        if watch.interrupted is None:
            crew.begin_on(hosts, run, *placement.free_ports(1))
            watch.begin()
            entry.workers = msgspec.convert(crew.described(hosts), list[WorkerInfo])
            write_run(record, entry)
        watch.until_swept()
        entry.workers = msgspec.convert(crew.described(hosts), list[WorkerInfo])  # with all readings of the clocks
        if number := crew.new_strangers() + watch.strangers:
            strangers = STRANGERS.format(number=count(number, "connection"))
            watch.notices.append(strangers)
            on_event(Notice(strangers))
        return outcome_of(watch, record, time.monotonic() - begun)
