"""The folder of a checkpoint while it is written: one writer at a time, and nothing left of saves that were killed."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from paceline.checkpoint import manifest
from paceline.checkpoint.manifest import FOLDER, LOCK, TEMPORARY, Manifest
from paceline.errors import CheckpointError


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
