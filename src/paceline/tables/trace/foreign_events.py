"""Events of Chrome traces that torch did not write: Horovod's timeline, JAX, Perfetto's JSON, and any other program.

Such a trace knows no kinds. Its complete events (`X`), and its pairs of begin and end (`B`, `E`), become events of the
kind `event`; processes and threads get the labels that the file gives them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from paceline.tables.trace.json_reader import Event, Number

FOREIGN = "\0event"  # no program writes this category
LONGEST = 100  # characters of a label
MOST_LABELS = 10_000
DEEPEST = 10_000  # events that are open on one thread
STRINGS = 1 << 40  # identifiers that are texts get numbers from here on


class ForeignEvents:
    """Collects over the chunks of one file."""

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self._torch = False
        self._open: dict[tuple[int, int], list[Event]] = {}
        self._numbers: dict[str, int] = {}
        self._processes: dict[int, str] = {}
        self._threads: dict[tuple[int, int], str] = {}

    def of(self, events: list[Event]) -> list[Event]:
        """The complete foreign events of a chunk. None once torch's own events were seen."""
        known = self._known
        if not self._torch:
            self._torch = any(event.ph == "X" and event.cat in known for event in events)
        if self._torch:
            self._open.clear()
            self._threads.clear()
            return []
        found: list[Event] = []
        for event in events:
            if event.ph == "M":
                self._label(event)
            elif event.ph in "XBE" and event.ph:
                event.pid, event.tid = self._number(event.pid), self._number(event.tid)
                if event.ph == "X":
                    event.cat = FOREIGN
                    found.append(event)
                else:
                    self._begin_or_end(event, found)
        return found

    def _begin_or_end(self, event: Event, found: list[Event]) -> None:
        stack = self._open.setdefault((event.pid, event.tid), [])  # type: ignore[arg-type]
        if event.ph == "B":
            if len(stack) < DEEPEST:
                stack.append(event)
        elif stack:
            begun = stack.pop()
            begun.ph, begun.cat, begun.dur = "X", FOREIGN, event.ts - begun.ts
            found.append(begun)

    def _number(self, told: Number) -> int:
        """An identifier as a number. Some programs write texts."""
        if isinstance(told, str) and not (told.isdecimal() and len(told) < 18):
            return self._numbers.setdefault(told, STRINGS + len(self._numbers))
        return int(told) if told is not None and -(2**62) < float(told) < 2**62 else -1

    def _label(self, event: Event) -> None:
        label = event.args.label if event.args else None
        if not isinstance(label, str) or len(self._threads) + len(self._processes) >= MOST_LABELS:
            return
        process, thread = self._number(event.pid), self._number(event.tid)
        if event.name == "process_name":
            self._processes[process] = label[:LONGEST]
        elif event.name == "thread_name":
            self._threads[process, thread] = label[:LONGEST]

    def labels(self, threads: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Labels of these threads, given by process and thread. None in a trace of torch."""
        if self._torch:
            return {}
        texts = {number: text[:LONGEST] for text, number in self._numbers.items()}
        found = {}
        for process, thread in threads:
            owner = self._processes.get(process) or texts.get(process) or f"process {process}"
            own = self._threads.get((process, thread)) or texts.get(thread) or f"thread {thread}"
            found[process, thread] = f"{owner} · {own}"
        return found
