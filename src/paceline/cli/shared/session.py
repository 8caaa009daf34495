"""The state of one `paceline` command: its verb, its record, its zygote, and the JSON document."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer

from paceline import __version__
from paceline.launch import Zygote
from paceline.record.schema import SCHEMA


@dataclass(slots=True, kw_only=True)
class Session:
    """One call of `paceline`. A verb fills in these fields, so that an error message can name the record."""

    zygote: Zygote | None = None
    verb: str = ""
    typed: tuple[str, ...] = ()  # the words after `paceline`
    json: bool = False
    record: Path | None = None

    @classmethod
    def of(cls, context: typer.Context, *, json: bool) -> Session:
        """The session of the verb in this context. `json`: a JSON document is wanted."""
        session = context.find_object(cls)
        assert session is not None
        session.verb = context.info_name or ""
        session.json = json
        return session

    def workers(self) -> Zygote:
        """The zygote; started now if it does not run yet."""
        if self.zygote is None:
            self.zygote = Zygote.start()
        return self.zygote

    def print_document(self, document: dict[str, Any]) -> None:
        """Prints the verb's only JSON document on standard output."""
        head = {
            "schema": SCHEMA,
            "verb": self.verb,
            "record": str(self.record) if self.record else None,
            "paceline": __version__,
        }
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(head | document)) + b"\n")
        sys.stdout.flush()
