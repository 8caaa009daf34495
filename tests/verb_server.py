"""Types verbs: `python verb_server.py`, one fork a command line, all of them on one zygote.

A command line of its own imports torch for seconds, and there are dozens. Asked on standard input, a JSON line each
({"program", "arguments", "folder", "out", "err", "environment"}, or {"wait": process}); answers with the process,
or with its exit code, a line each. What must be seen of a whole process (its death) is typed in one of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys

from paceline.cli.app import command_line, commands
from paceline.cli.horovodrun import main as horovodrun
from paceline.launch import Zygote

# What verbs import when they need it: once here, not once a command line. A machine with a GPU may have none of them.
for name in ("polars", "pydantic"):  # typer looks for the types of the last
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


class Lent(Zygote):
    """Serves one command line after the other: none of them ends it."""

    def close(self) -> None:
        pass


def type_horovodrun(arguments: list[str], zygote: Zygote) -> int:
    horovodrun.paceline = lambda words, **how: command_line(words, zygote, **how)
    return horovodrun.main(arguments)


PROGRAMS = {"paceline": command_line, "horovodrun": type_horovodrun}


def serve(zygote: Zygote) -> None:
    for line in sys.stdin:
        if not line.strip():  # the end: a fork of the other side may keep the pipe open for long
            break
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            os._exit(typed(order, zygote))


def typed(order: dict[str, object], zygote: Zygote) -> int:
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(str(order[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOCTTY, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    os.chdir(str(order["folder"]))
    os.environ |= order["environment"]  # type: ignore[call-overload]
    try:
        return PROGRAMS[str(order["program"])](list(order["arguments"]), zygote)  # type: ignore[call-overload]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    zygote = Lent.start()
    commands()
    gc.freeze()
    zygote.receive()  # until it has imported torch
    serve(zygote)
    Zygote.close(zygote)
