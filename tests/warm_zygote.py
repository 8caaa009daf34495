"""The zygote, with what torch imports late already imported: `started()`, or `python warm_zygote.py FD [FOLDER]`.

The first optimizer of a process imports torch._dynamo, which takes longer than most scripts here. With FOLDER, each
worker leaves there which branches of script/ and strategies/ it took: see `choose`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.launch import Zygote


@contextmanager
def started(*arguments: str, kind: type[Zygote] | None = None) -> Iterator[Zygote]:
    from paceline.launch import Zygote

    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, __file__, str(its.fileno()), *arguments], pass_fds=[its.fileno()], start_new_session=True
        )
    with (kind or Zygote)(process, ours) as zygote:
        yield zygote


def cover(folder: str) -> None:
    import coverage

    from paceline import script, strategies

    rooms = [os.path.join(room.__path__[0], "*") for room in (script, strategies)]
    leave = os._exit
    measured: list[coverage.Coverage] = []

    def begin() -> None:
        one = coverage.Coverage(os.path.join(folder, str(os.getpid())), branch=True, include=rooms, config_file=False)
        one.start()
        measured[:] = [one]

    def end(code: int) -> None:
        if measured:
            measured[0].stop()
            measured[0].save()
        leave(code)

    os.register_at_fork(after_in_child=begin)
    os._exit = end


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401

    from paceline.launch.zygote.process import main

    if len(sys.argv) > 2:
        cover(sys.argv.pop())
    main()
