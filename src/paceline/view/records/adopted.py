"""Makes a record of traces that were taken elsewhere, so that the pages can show them.

The record lies in a temporary folder. Its trace files are hard links to the given files, or copies.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from paceline import __version__
from paceline.errors import UsageError
from paceline.record import Outcome, Run, write_run
from paceline.tables.trace.columns import rank_in
from paceline.tables.trace.parallel import prove_trace
from paceline.view.records.reading import FROM_ELSEWHERE


def adopt(paths: Sequence[Path], root: Path) -> str:
    """Makes the record below `root`, and gives its name. TraceError if a file is no trace."""
    endings = [prove_trace(path) for path in paths]
    ranks = _ranks(paths)
    name = paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1} more"
    folder = root / name.lstrip(".")
    folder.mkdir(mode=0o700)
    for path, rank, ending in zip(paths, ranks, endings, strict=True):
        _bring(path, folder / f"trace.rank{rank}.{ending}")
    # It names no workers: they are not known, and a file may hold several processes.
    write_run(
        folder,
        Run(
            paceline=__version__,
            verb=FROM_ELSEWHERE,
            script=" ".join(path.name for path in paths[:4]),
            arguments=[],
            settings={},
            started=max((path.stat().st_mtime for path in paths), default=time.time()),
            outcome=Outcome(exit_code=0, seconds=0.0),
        ),
    )
    return folder.name


def _ranks(paths: Sequence[Path]) -> list[int]:
    """The ranks in the files' names; if one is missing, or two are equal, in the order in which they were typed."""
    told = [rank_in(path.name) for path in paths]
    known = [rank for rank in told if rank is not None]
    return known if len(set(known)) == len(paths) else list(range(len(paths)))


def _bring(path: Path, target: Path) -> None:
    source = path.resolve()
    try:
        os.link(source, target)  # on another file system, or without permission: a copy
    except OSError:
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be copied to {target.parent}: {error.strerror or error}.",
                advice="Make room, or choose another folder for temporary files: TMPDIR=/somewhere paceline view …",
            ) from error
