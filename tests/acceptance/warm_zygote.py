"""The zygote, with what torch imports late already imported: `python warm_zygote.py FD [FOLDER]`.

The first optimizer of a process imports torch._dynamo, which takes longer than most scripts here. With FOLDER, each
worker leaves there which branches of script/ and strategies/ it took: see `choose`.
"""

import os
import sys

import torch._dynamo  # noqa: F401

from paceline import script, strategies
from paceline.launch.zygote.process import main


def cover(folder: str) -> None:
    import coverage

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
    if len(sys.argv) > 2:
        cover(sys.argv.pop())
    main()
