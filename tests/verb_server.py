"""Types verbs: `python verb_server.py`, one fork a command line, all of them on one zygote.

A command line of its own imports torch for seconds, and there are dozens. Asked on standard input, a JSON line each
({"arguments", "folder", "out", "err", "environment"}); answers with the exit code, a line each. What must be seen of
whole processes (signals, deaths) is typed in processes of its own.
"""

from __future__ import annotations

import json
import os
import sys

from paceline.cli.app import command_line
from paceline.launch import Zygote


class Lent(Zygote):
    """Serves one command line after the other: none of them ends it."""

    def close(self) -> None:
        pass


def serve(zygote: Zygote) -> None:
    for line in sys.stdin:
        if not line.strip():  # the end: a fork of the other side may keep the pipe open for long
            break
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(typed(order, zygote))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def typed(order: dict[str, object], zygote: Zygote) -> int:
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(str(order[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOCTTY, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(str(order["folder"]))
    os.environ |= order["environment"]  # type: ignore[call-overload]
    try:
        return command_line(list(order["arguments"]), zygote)  # type: ignore[call-overload]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    zygote = Lent.start()
    zygote.receive()  # until it has imported torch
    serve(zygote)
    Zygote.close(zygote)
