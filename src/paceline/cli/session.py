"""The state of one `paceline` command: its verb, its record, its zygote, and the JSON document."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import __version__
from paceline.cli.defaults import Default

# Records are imported where one is made: help needs none, and is asked for often.
if TYPE_CHECKING:
    import typer

    from paceline.launch import Zygote
    from paceline.launch.cluster.kept_hosts import KeptHosts
    from paceline.record.about.labels import Labels


@dataclass(slots=True, kw_only=True)
class Session:
    """One call of `paceline`. A verb fills in these fields, so that an error message can name the record."""

    zygote: Zygote | None = None
    hosts: KeptHosts | None = None  # on several hosts, of a verb that makes a series of runs there
    resources: ExitStack = field(default_factory=ExitStack)  # of the verb, while it runs
    verb: str = ""
    typed: tuple[str, ...] = ()  # the words after `paceline`
    command: tuple[
        str, ...
    ] = ()  # the whole command: `paceline` and these words, or another program that stands for them
    defaults: tuple[Default, ...] = ()  # options that come from the project, not from the command
    context: Any = None  # of the parser
    json: bool = False
    quiet: bool = False
    seeded: bool = False  # a seed was given, and none was drawn
    reads_only: bool = False  # the command line is read and checked, and the verb does not run
    record: Path | None = None
    lock: int | None = None  # on the record's folder, as long as this command uses it

    @classmethod
    def of(cls, context: typer.Context) -> Session:
        """The session of the verb in this context."""
        session = context.find_object(cls)
        assert session is not None
        session.context, session.verb = context, context.command_path.removeprefix("paceline ")
        return session

    def open_record(
        self, parent: Path, name: str, *, script: str = "", share: bool = False, labels: Labels | None = None
    ) -> Path:
        """Makes the folder of this command's record, which knows from now on what made it. In a temporary folder, with
        a warning, if the disk of `parent` is full or read-only."""
        from paceline.record.about.labels import write_labels
        from paceline.record.about.origin import describe, write_origin
        from paceline.record.refuge import new_folder_somewhere
        from paceline.record.stopping import stop
        from paceline.settings import all_variables

        self.record = new_folder_somewhere(parent, name, tell=_warn, share=share)
        self._take()
        try:
            origin, changes = describe(self.command, all_variables(), script=script, record=self.record.absolute())
            origin.defaults = {default.words: default.source for default in self.defaults}
            write_origin(self.record, origin, changes)
            if labels:
                write_labels(self.record, labels)
        except OSError as error:
            stop(self.record, error)
        return self.record

    def resume_record(self, record: Path) -> Path:
        """Goes on with an earlier record."""
        from paceline.record.about.origin import add_resumed
        from paceline.record.stopping import stop

        self.record = record
        self._take()
        try:
            add_resumed(record, self.command)
        except OSError as error:
            stop(record, error)
        return record

    def _take(self) -> None:
        from paceline.record.about.lock import hold

        assert self.record is not None
        self.leave()
        self.lock = hold(self.record)

    def leave(self) -> None:
        """Gives the lock on the record back."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def workers(self) -> Zygote | KeptHosts:
        """Who forks the workers: the hosts of the verb, or the zygote; started now if it does not run yet."""
        if self.hosts is not None:
            return self.hosts
        if self.zygote is None:
            from paceline.launch import Zygote  # slow to import, and most verbs that come here have one

            self.zygote = Zygote.start()
        return self.zygote

    def print_document(self, document: dict[str, Any]) -> None:
        """Prints the verb's only JSON document on standard output."""
        import msgspec

        from paceline.record.about.origin import without_secrets
        from paceline.record.schema import SCHEMA

        head = {
            "schema": SCHEMA,
            "verb": self.verb,
            "record": str(self.record) if self.record else None,
            "paceline": __version__,
        }
        if self.record is not None and self.command:
            head["command"] = shlex.join(without_secrets(self.command))
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(head | document)) + b"\n")
        sys.stdout.flush()


def _warn(text: str) -> None:
    from paceline.cli.terminal import stderr  # slow to import

    stderr().print(f"paceline: {text}", style="yellow", soft_wrap=True)
