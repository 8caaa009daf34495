"""The hosts of a series of runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.backend import ClusterBackend
from paceline.launch.cluster.controller import launch_on
from paceline.launch.cluster.crew import Crew
from paceline.launch.events import Event
from paceline.record import Outcome
from paceline.settings import RunSettings


class KeptHosts:
    """The hosts of a series of runs: their agents, with all that these have imported, stay from one run to the next.
    Stands for the zygote, which keeps the same on one host. Used in a `with` block."""

    def __init__(self, backend: ClusterBackend, interface: str | None) -> None:
        self.specs, self._backend, self._interface = backend.hosts(), backend, interface
        self._crew: Crew | None = None

    def __enter__(self) -> KeptHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_up()

    @property
    def words(self) -> list[str]:
        """The options about these hosts, for a command that is typed later."""
        return [*self._backend.words(), *(["--interface", self._interface] if self._interface else [])]

    def launch(
        self, run: RunSettings, *, record: Path, on_event: Callable[[Event], None], verb: str, limit: float | None
    ) -> Outcome:
        """As `launch`; fewer workers than there are take the first hosts."""
        return launch_on(
            run,
            self._backend,
            record=record,
            on_event=on_event,
            interface=self._interface,
            verb=verb,
            limit=limit,
            crew=self.crew,
        )

    def facts(self, run: RunSettings) -> list[wire.Facts]:
        """What the hosts tell of themselves, before the first of these runs. Raises as a run does."""
        with self.crew(run) as crew:
            crew.check(lambda: False)
            return crew.facts

    @contextlib.contextmanager
    def crew(self, run: RunSettings) -> Iterator[Crew]:
        """The crew, for one run. A crew that has lost an agent is replaced before the next."""
        if self._crew is not None and self._crew.script != (run.script, run.module):
            self._give_up()
        try:
            if self._crew is None:
                self._crew = Crew(self._backend, self.specs, run, self._interface).__enter__()
            yield self._crew
        except BaseException:
            self._give_up()
            raise
        if not all(host.is_fit for host in self._crew.hosts):
            self._give_up()

    def _give_up(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()
