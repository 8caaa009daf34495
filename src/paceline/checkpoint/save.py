"""`paceline.save`: writes a checkpoint that loads under every strategy and number of workers."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoint import background, manifest
from paceline.checkpoint.crew import Crew, this_crew
from paceline.checkpoint.manifest import FOLDER, LOCK, TEMPORARY, Manifest, StoredFile, StoredTensor
from paceline.checkpoint.parts import kind_of, named_parts, state_of
from paceline.checkpoint.safetensors_file import Shards, in_order
from paceline.checkpoint.tree import Encoder
from paceline.errors import CheckpointError, UsageError
from paceline.script import streams
from paceline.script.output.real_files import real_files
from paceline.script.seams.api import current, in_own_process
from paceline.strategies.whole import strategy_name, whole


def save(
    path: str | os.PathLike[str],
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    *,
    step: int | None = None,
    extra: Any = None,
    asynchronous: bool = False,
    **more: Any,
) -> None:
    """Saves a checkpoint to the folder `path`: `paceline.save("ck", model, optimizer, loader, step=step)`.

    Each object may be a dict or list of several. `more` are further objects with state_dict and load_state_dict (a
    scheduler, …), by name, or plain values, which `load` returns in `extra` as it does `extra` itself. The position of
    the loader and the random-number states are saved, too.

    Every worker calls it, and waits until the checkpoint is on the disk; under an asynchronous strategy only rank 0
    saves, and no worker waits for another. With `asynchronous=True` tensors are copied to
    host memory and a thread of rank 0 writes them; the next save waits for it and raises its error. The checkpoint that
    the path had before stays whole until the new one is complete, even if the process is killed. If a peer is gone, the
    error is that of the collective that misses it.
    """
    crew = this_crew()
    if not crew.writes:
        return
    where = Path(crew.gather(os.path.abspath(path), "the path of a checkpoint")[0])
    background.finish(crew)
    stage = current()
    if stage is not None and in_own_process() and not stage.aside:
        stage.emit("on_save", where)
    given = {"model": model, "optimizer": optimizer, "loader": loader} | more
    parts, values = named_parts({name: value for name, value in given.items() if value is not None})
    states = [Part(name, kind_of(thing), type(thing).__name__, state_of(thing, crew)) for name, thing in parts.items()]
    own = streams.encoded()
    saving = stage.run.saving if stage is not None else None
    contents = _contents(states, _with_values(extra, values), step, crew, job=saving.job if saving else "")
    contents.manifest.random = crew.gather(own, "random-number states") if crew.apart else [own]
    with real_files():
        drafts: list[Draft] = []
        name = crew.first("making its folder", lambda: _draft(where, drafts))
        if asynchronous:
            _write_later(contents, drafts, crew)
        else:
            _write_now(contents, where / name, drafts, crew)


def save_states(path: Path, states: list[Part], *, step: int | None, extra: Any, job: str = "") -> int:
    """Saves states that are not those of objects, in one process; returns the number of tensors."""
    contents = _contents(states, extra, step, Crew(), job=job)
    draft = Draft(path)
    _write_now(contents, path / draft.name, [draft], Crew())
    return len(contents.tensors)


@dataclass(frozen=True, slots=True)
class Part:
    """The state of an object: its name, kind (see `parts`) and class."""

    name: str
    kind: str
    class_name: str
    state: Any


@dataclass(slots=True, kw_only=True)
class Contents:
    """What is to be written. The tensors may be parts, until `whole` has gathered them."""

    manifest: Manifest
    tensors: list[tuple[str, torch.Tensor]]


def _with_values(extra: Any, values: dict[str, Any]) -> Any:
    if values and extra is not None and not isinstance(extra, dict):
        raise UsageError(
            f"extra is a {type(extra).__name__}, and {', '.join(values)} would have to be added to it.",
            advice="Pass a dict: extra={…}",
        )
    return (extra or {}) | values if values else extra


def _contents(states: list[Part], extra: Any, step: int | None, crew: Crew, *, job: str) -> Contents:
    if step is not None and (not isinstance(step, int) or isinstance(step, bool)):
        raise UsageError(f"step={step!r} is not a whole number.", advice="Pass the number of steps so far: step=100")
    encoder = Encoder()
    manifest = Manifest(
        step=step,
        saved={
            "paceline": sys.modules["paceline"].__version__,
            "torch": str(torch.__version__),
            "strategy": strategy_name(),
            "workers": crew.workers,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **({"job": job} if job else {}),
        },
        parts={
            part.name: {"kind": part.kind, "class": part.class_name, "state": encoder.encode(part.state, part.name)}
            for part in states
        },
        extra=encoder.encode(extra, "extra"),
    )
    return Contents(manifest=manifest, tensors=in_order(encoder.tensors))


def _draft(where: Path, drafts: list[Draft]) -> str:
    drafts.append(Draft(where))
    return drafts[0].name


def _write_now(contents: Contents, folder: Path, drafts: list[Draft], crew: Crew) -> None:
    """Every worker writes its share of the tensors, if all of them see the folder; otherwise rank 0 writes all."""
    try:
        see = all(crew.gather(folder.is_dir(), "whether all workers see the checkpoint's folder"))
        owner = _shares(crew.world if see else 1)
        shards = Shards(folder, crew.rank, contents.tensors)
        written = crew.each("writing tensors", lambda: _write_own(contents.tensors, shards, owner, crew.rank))
        crew.first("completing it", lambda: drafts[0].commit(_completed(contents.manifest, written)))
    finally:
        for draft in drafts:
            draft.abandon()


def _shares(world: int) -> Callable[[int], int]:
    """Says for each tensor, by its bytes, which worker writes it: the one with the fewest bytes so far. All workers get
    the same answers."""
    written = [0] * world

    def owner(size: int) -> int:
        rank = written.index(min(written))
        written[rank] += size
        return rank

    return owner


def _write_own(
    tensors: list[tuple[str, torch.Tensor]], shards: Shards, owner: Callable[[int], int], rank: int
) -> dict[str, Any]:
    """One whole tensor at a time is in memory. A worker that cannot write goes on gathering with the others."""
    failed: OSError | None = None
    for name, tensor in tensors:
        gathered = whole(tensor).detach()
        if owner(gathered.nbytes) != rank or failed is not None:
            continue
        try:
            shards.add(name, gathered)
        except OSError as error:
            failed = error
            shards.abandon()
    if failed is not None:
        raise failed
    return shards.close()


def _completed(manifest: Manifest, written: list[dict[str, Any]]) -> Manifest:
    manifest.files = [StoredFile(**file) for share in written for file in share["files"]]
    manifest.tensors = {name: StoredTensor(**entry) for share in written for name, entry in share["tensors"].items()}
    return manifest


def _write_later(contents: Contents, drafts: list[Draft], crew: Crew) -> None:
    copies: list[tuple[str, torch.Tensor]] = []
    for name, tensor in contents.tensors:
        gathered = whole(tensor).detach()
        if crew.rank == 0:
            copies.append((name, gathered.to("cpu", copy=True)))
    if crew.rank:
        return
    draft = drafts[0]

    def write() -> None:
        try:
            shards = Shards(draft.path / draft.name, 0, contents.tensors)
            for name, tensor in copies:
                shards.add(name, tensor)
            draft.commit(_completed(contents.manifest, [shards.close()]))
        finally:
            draft.abandon()

    background.start(write)


# -- the folder -------------------------------------------------------------------------------------------------------


class Draft:
    """A new checkpoint at a path, unseen until `commit`. Used by rank 0; held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._refuse_other_files()
        self._lock: int | None = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system takes it back from a killed process
        except BlockingIOError:
            os.close(self._lock)
            raise CheckpointError(
                f"{path} is being written by another process.",
                advice="Give each run a path of its own, or wait for the other save.",
            ) from None
        except OSError:
            pass  # a file system without locks: the user has to see to it
        self._remove_all_but(self._current())
        self.name = manifest.new_folder_name()
        os.mkdir(path / self.name)

    def commit(self, content: Manifest) -> None:
        """Makes the draft the checkpoint of its path; from then on, and not before, the old one is removed."""
        manifest.sync_folder(self.path / self.name)
        manifest.sync_folder(self.path)
        manifest.write(self.path, content)
        manifest.sync_folder(self.path.parent)
        self._remove_all_but(self.name)
        self._release()

    def abandon(self) -> None:
        """Removes the draft; the path keeps the checkpoint that it had."""
        if self._lock is not None:
            shutil.rmtree(self.path / self.name, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        assert self._lock is not None
        os.close(self._lock)
        self._lock = None

    def _current(self) -> str:
        """The tensors folder of the present checkpoint. All are kept if a checkpoint.json cannot be read."""
        if not (self.path / manifest.NAME).exists():
            return ""
        try:
            return next((file.path.partition("/")[0] for file in manifest.read(self.path).files), "")
        except CheckpointError:
            return "*"

    def _remove_all_but(self, kept: str) -> None:
        if kept == "*":
            return
        for entry in list(os.scandir(self.path)):
            if FOLDER.fullmatch(entry.name) and entry.name != kept:
                shutil.rmtree(entry.path, ignore_errors=True)
            elif TEMPORARY.fullmatch(entry.name):
                os.unlink(entry.path)

    def _refuse_other_files(self) -> None:
        """Nobody's folder becomes a checkpoint by a mistyped path."""
        names = sorted(os.listdir(self.path))
        known = (manifest.NAME, LOCK)
        others = [n for n in names if n not in known and not FOLDER.fullmatch(n) and not TEMPORARY.fullmatch(n)]
        if others and manifest.NAME not in names:
            raise CheckpointError(
                f"{self.path} is a folder with other files, such as {others[0]}.",
                advice=f"Save to a folder of its own: {self.path / 'checkpoint'}",
            )
