"""The agents of some hosts, from the first run on them to the last: started once, looked at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.launch.cluster import facts, preflight
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.backend import ClusterBackend
from paceline.launch.cluster.hosts import HostSpec, filled, spread
from paceline.launch.cluster.remote import Agents, RemoteHost
from paceline.launch.versions import compared
from paceline.settings import RunSettings, hash_seed, module_path


class Crew:
    """Used in a `with` block, which ends the agents."""

    def __init__(self, backend: ClusterBackend, specs: Sequence[HostSpec], run: RunSettings, interface: str | None):
        """`run`: one of the runs, which all have its script. `interface`: between the hosts, as typed."""
        self.specs, self._notices, self._told = list(specs), list[str](), 0
        self._backend, self._interface, self.script = backend, interface, (run.script, run.module)
        self._way: preflight.Way | None = None
        self._is_checked, self.facts = False, list[wire.Facts]()
        self.agents = Agents(len(specs))
        self.hosts: list[RemoteHost] = []

    def __enter__(self) -> Crew:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _path(self) -> str:
        """Of the script, to be compared; empty: a module."""
        script, is_module = self.script
        return "" if is_module else script

    def _start(self) -> None:
        addresses = tuple(each.address for each in facts.interfaces())
        variables = {"PYTHONHASHSEED": hash_seed()} | ({"PYTHONPATH": path} if (path := module_path()) else {})
        for number, spec in enumerate(self.specs):
            boot = wire.Boot(
                number=number,
                addresses=(*addresses, "127.0.0.1"),
                port=self.agents.port,
                access=self.agents.access,
                script=self._path,
                folder=os.getcwd(),
            )
            handle = self._backend.start_agent(spec, variables, msgspec.json.encode(boot))
            self.hosts.append(RemoteHost(spec, number, 0, agents=self.agents, handle=handle, record=Path()))

    def check(self, interrupted: Callable[[], bool]) -> None:
        """Looks at the hosts before the first run. LaunchError, with all problems, if some host cannot be used."""
        if self._is_checked:
            return
        self._notices, self._way, self.facts = preflight.check(
            self.hosts,
            versions=compared(),
            digest=facts.digest(self._path) if self._path else "",
            folder=os.getcwd(),
            script=self._path,
            interface=self._interface,
            patience=self._backend.patience,
            interrupted=interrupted,
        )
        self._is_checked = not interrupted()

    def take_notices(self) -> list[str]:
        """Notices about the hosts that were not told yet."""
        notices, self._notices = self._notices, []
        return notices

    def assigned(self, run: RunSettings, record: Path) -> list[RemoteHost]:
        """The hosts of a run, with their shares of its workers."""
        specs = spread(self.specs, run.workers, run.spread) if run.spread else list(filled(self.specs, run.workers))
        first = 0
        for host, spec in zip(self.hosts, specs, strict=False):
            host.assign(first, spec.workers, record)
            first += spec.workers
        return self.hosts[: len(specs)]

    def begin_on(self, hosts: Sequence[RemoteHost], run: RunSettings, port: int) -> None:
        """Sets what each of these hosts is told when the run begins."""
        number = self.agents.renew()
        terminal = tuple((stream, *os.get_terminal_size(stream)) for stream in (1, 2) if os.isatty(stream))
        way = self._way if len(hosts) > 1 else None
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
                number=number,
            )

    def described(self, hosts: Sequence[RemoteHost]) -> list[dict[str, Any]]:
        """The workers of these hosts, for the record, with the clock of each host."""
        return [
            {**worker, "clock": msgspec.to_builtins(self.agents.clocks[host.number].measured())}
            for host in hosts
            for worker in host.workers
        ]

    def new_strangers(self) -> int:
        """Connections from strangers since the last call."""
        before, self._told = self._told, self.agents.strangers
        return self._told - before

    def close(self) -> None:
        """Ends the agents, and with them all that still runs on their hosts."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.agents.close)
            for host in self.hosts:
                stack.callback(host.close)
            for host in self.hosts:
                host.say(wire.End())
