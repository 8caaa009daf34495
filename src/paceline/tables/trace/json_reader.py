"""Reads a Chrome trace as a stream of events: gigabytes, with the memory of one chunk.

A trace is one JSON document, `{…, "traceEvents": [{…}, {…}, …], …}` or the bare list, perhaps compressed. It is read in
chunks, and each chunk is cut after its last complete event. The cut is guessed from the text and proven by decoding: if
everything before a comma decodes as a list of complete events, the comma was between two events. Only if the guess is
wrong is the text scanned token by token.

Input may come from anywhere: for any content, the result is events or a `TraceError`, and memory stays bounded.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from paceline.errors import TraceError
from paceline.record.inside import File
from paceline.tables.trace.time_limit import go_on

CHUNK = 1 << 20  # bytes of text decoded at a time: the result fits a core's cache (8 MiB: 1.4 × the time)
LONGEST = 32 << 20  # bytes of text without a complete event, or before or after the events
GUESSED = 1 << 16  # bytes at the end of a chunk in which a cut is searched
EXPANSION = 200  # times: JSON of a trace compresses ten- to fiftyfold; a repeated byte, thousandfold
PLAUSIBLE = 64 << 20  # bytes of text before the expansion is checked

_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{},]', re.DOTALL)
_UNCLOSED = b'"'  # a string that continues in the next chunk
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_KEY = re.compile(rb"\s*:\s*")
_SPACE = b" \t\r\n"
_MAGIC = b"\x1f\x8b"

Number = int | float | str | None
NOTHING = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are read; -1 if absent. The names are those that torch writes, current and
    older."""

    external: Number = msgspec.field(name="External id", default=-1)
    external_before: Number = msgspec.field(name="external id", default=-1)
    correlation: Number = -1
    device: Number = -1
    stream: Number = -1
    sequence: Number = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=-1)
    nbytes: Number = msgspec.field(name="bytes", default=-1)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    elements: Number = msgspec.field(name="In msg nelems", default=-1)
    element: Any = msgspec.field(name="dtype", default=None)
    memory: Number = msgspec.field(name="Bytes", default=0)
    address: Number = msgspec.field(name="Addr", default=0)
    allocated: Number = msgspec.field(name="Total Allocated", default=0)
    reserved: Number = msgspec.field(name="Total Reserved", default=0)
    memory_device: Number = msgspec.field(name="Device Id", default=-1)
    memory_kind: Number = msgspec.field(name="Device Type", default=0)
    label: Any = msgspec.field(name="name", default=None)  # of a process or a thread


class Event(msgspec.Struct, gc=False):
    """One line of a trace. `ts` and `dur` are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: int | float = 0
    dur: int | float = 0
    args: Args | None = None


class Head(msgspec.Struct):
    """The metadata of a trace."""

    base: int | float = msgspec.field(name="baseTimeNanoseconds", default=0)
    devices: list[dict[str, Any]] = msgspec.field(name="deviceProperties", default_factory=list)
    distributed: dict[str, Any] = msgspec.field(name="distributedInfo", default_factory=dict)
    with_stack: int = 0
    record_shapes: int = 0
    profile_memory: int = 0
    trace_id: Any = ""
    host: Any = msgspec.field(name="host_name", default="")
    paceline: dict[str, Any] = {}  # in Paceline's own traces: rank, world, first and last step


class JsonStream:
    """`for events in Stream(path)`; afterwards `head` is complete. Can be iterated once."""

    def __init__(self, path: Path | File) -> None:
        self.path = path
        self.head = Head()
        self._decoder = msgspec.json.Decoder(list[Event])
        self._read = 0  # bytes of text
        self._gzip = False
        self._file: IO[bytes] | None = None

    def __iter__(self) -> Iterator[list[Event]]:
        try:
            # A file of a record is opened within its folder; a file that a person named may be a link to anywhere.
            with self.path.open() if isinstance(self.path, File) else open(self.path, "rb") as file:
                self._gzip = file.read(2) == _MAGIC
                file.seek(0)
                self._file = file
                with gzip.GzipFile(fileobj=file) if self._gzip else file as text:
                    yield from self._events(text)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._refuse(f"is damaged or was cut short: {error}", error)
        except OSError as error:
            self._refuse(f"cannot be read: {error.strerror or error}", error)

    def _events(self, text: Any) -> Iterator[list[Event]]:
        buffer, bare = self._begin(text)
        while True:
            more = self._more(text, buffer)
            buffer = (buffer + more).lstrip(_SPACE)
            if buffer[:1] not in (b"{", b"]", b""):
                self._refuse(f"has an invalid event: {buffer[:20]!r}")
            events, used, ended = self._cut(buffer)
            buffer = buffer[used:]
            if events:
                yield events
            if ended:
                break
            if more:
                if len(buffer) > LONGEST:
                    self._refuse(f"has more than {LONGEST >> 20} MiB of text without a complete event")
            elif not used:
                if not bare:
                    self._refuse("was cut short: it ends in the middle of its events")
                if buffer:
                    yield self._decode(buffer)  # a bare list may lack its closing bracket
                return
        if not bare:
            self._end(text, buffer)

    # -- before and after the events -------------------------------------------------------------------------------

    def _begin(self, text: Any) -> tuple[bytes, bool]:
        """Reads up to the list of events. Returns the text read of it, and whether the document is a bare list."""
        buffer = self._more(text).removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
        if buffer[:1] == b"[":
            return buffer[1:], True
        if buffer[:1] != b"{":
            first = ascii(buffer[:20].decode("latin-1"))
            self._refuse(f"begins with {first}, which is not JSON" if buffer else "is empty")
        while True:
            at = self._find_events(buffer)
            if at is not None:
                key, start = at
                self._read_metadata(buffer[:key].rstrip(_SPACE).removesuffix(b",") + b"}")
                return buffer[start:], False
            if len(buffer) > LONGEST:
                self._refuse(f'has no "traceEvents" in its first {LONGEST >> 20} MiB')
            more = self._more(text, buffer)
            if not more:
                self._refuse('has no "traceEvents", or was cut short before them')
            buffer += more

    def _find_events(self, buffer: bytes) -> tuple[int, int] | None:
        """The position of the outermost object's key `traceEvents`, and of the start of its list."""
        depth = 0
        for token in _TOKENS.finditer(buffer):
            sign = token.group()
            if sign == _UNCLOSED:
                break
            if sign in (b"{", b"["):
                depth += 1
            elif sign in (b"}", b"]"):
                depth -= 1
                if depth == 0:
                    self._refuse('has no "traceEvents"')
            elif depth == 1 and sign == b'"traceEvents"':
                colon = _KEY.match(buffer, token.end())
                if colon is None or colon.end() == len(buffer):
                    continue
                if buffer[colon.end() : colon.end() + 1] != b"[":
                    self._refuse('has a "traceEvents" that is not a list')
                return token.start(), colon.end() + 1
        return None

    def _end(self, text: Any, buffer: bytes) -> None:
        """Reads the text after the events: `buffer` begins after the list."""
        while len(buffer) <= LONGEST and (more := self._more(text, buffer)):
            buffer += more
        if len(buffer) > LONGEST:
            return  # the rest is not needed: the events are complete
        rest = buffer.strip(_SPACE)
        if not rest.endswith(b"}"):
            self._refuse("was cut short after its events")
        self._read_metadata(b"{" + rest.removeprefix(b","))

    def _read_metadata(self, document: bytes) -> None:
        try:
            # Decoded separately: metadata after the events adds to the metadata before them.
            told = msgspec.json.decode(document, type=Head)
        except (msgspec.DecodeError, RecursionError) as error:
            self._refuse(f"has invalid metadata: {error}", error)
        for name in Head.__struct_fields__:
            value = getattr(told, name)
            if value:
                setattr(self.head, name, value)

    # -- cutting -----------------------------------------------------------------------------------------------------

    def _cut(self, buffer: bytes) -> tuple[list[Event], int, bool]:
        """Complete events at the start of `buffer`, the length of their text, and whether the list ends there."""
        if len(buffer) > GUESSED:
            found = list(_BETWEEN.finditer(buffer, len(buffer) - GUESSED))
            if found:
                cut = found[-1]
                try:
                    text = b"".join((b"[", memoryview(buffer)[: cut.start() + 1], b"]"))
                    return self._decoder.decode(text), cut.end() - 1, False
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                    pass  # the comma was inside an event, or the list has ended: scan token by token
        return self._cut_exactly(buffer)

    def _cut_exactly(self, buffer: bytes) -> tuple[list[Event], int, bool]:
        depth, comma = 0, 0
        for token in _TOKENS.finditer(buffer):
            sign = token.group()
            if sign == _UNCLOSED:
                break
            if sign in (b"{", b"["):
                depth += 1
            elif sign == b"," and depth == 0:
                comma = token.start()
            elif sign in (b"}", b"]"):
                depth -= 1
                if depth < 0:
                    return self._decode(buffer[: token.start()]), token.end(), True
        return (self._decode(buffer[:comma]), comma + 1, False) if comma else ([], 0, False)

    def _decode(self, text: bytes) -> list[Event]:
        try:
            return self._decoder.decode(b"[" + text.rstrip(_SPACE).removesuffix(b",") + b"]")
        except RecursionError as error:
            self._refuse("is nested too deeply to be a trace", error)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._refuse(f"has an invalid event: {error}", error)

    def _more(self, text: Any, held: bytes = b"") -> bytes:
        """The next chunk. If the held text was not enough, doubles it, to limit how often it is scanned."""
        go_on()
        chunk: bytes = text.read(max(CHUNK, min(len(held), LONGEST + CHUNK - len(held))))
        self._read += len(chunk)
        if self._gzip and self._read > PLAUSIBLE and self._file is not None:
            times = self._read // max(self._file.tell(), 1)
            if times > EXPANSION:
                self._refuse(f"expands {times}-fold, which no trace does: reading stopped")
        return chunk

    def _refuse(self, what: str, cause: BaseException | None = None) -> NoReturn:
        raise TraceError(
            f"{self.path} {what}.",
            advice="Give a trace written by torch.profiler's export_chrome_trace, or another one in Chrome's format: "
            ".json or .json.gz.",
        ) from cause


# -- events that torch did not write ----------------------------------------------------------------------------------
# Such a trace knows no kinds. Its complete events (`X`), and its pairs of begin and end (`B`, `E`), become events of
# the kind `event`; processes and threads get the labels that the file gives them.


FOREIGN = "\0event"  # no program writes this category
LONGEST_LABEL = 100  # characters of a label
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
            self._processes[process] = label[:LONGEST_LABEL]
        elif event.name == "thread_name":
            self._threads[process, thread] = label[:LONGEST_LABEL]

    def labels(self, threads: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Labels of these threads, given by process and thread. None in a trace of torch."""
        if self._torch:
            return {}
        texts = {number: text[:LONGEST_LABEL] for text, number in self._numbers.items()}
        found = {}
        for process, thread in threads:
            owner = self._processes.get(process) or texts.get(process) or f"process {process}"
            own = self._threads.get((process, thread)) or texts.get(thread) or f"thread {thread}"
            found[process, thread] = f"{owner} · {own}"
        return found
