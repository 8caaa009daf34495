"""A zygote whose workers leave, in a folder, which branches of script/ and strategies/ they took: see `choose`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import coverage

from paceline import script, strategies
from paceline.launch import Zygote
from paceline.launch.zygote.process import main


@contextmanager
def started(folder: str) -> Iterator[Zygote]:
    ours, its = socket.socketpair()
    with its:
        command = [sys.executable, __file__, str(its.fileno()), folder]
        process = subprocess.Popen(command, pass_fds=[its.fileno()], start_new_session=True)
    with Zygote(process, ours) as zygote:
        yield zygote


def cover(folder: str) -> None:
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
    cover(sys.argv.pop())
    main()
