"""Runs scripts as `python script.py` would, one fork each, from one process that has imported torch and no Paceline.

Importing torch costs seconds, and there are some two hundred scripts. Asked on standard input, a JSON line a script
({"script", "arguments", "folder", "out", "err"}); answers with its exit code, a line each.
"""

import atexit
import gc
import json
import os
import runpy
import sys
import traceback
import weakref

import torch
import torch._dynamo  # every optimizer imports it: once here, not once a script

# What was imported stays: no script's garbage collection walks through it, and copies its memory.
gc.freeze()


def serve() -> dict:
    """Returns only in a fork, with what it has to run."""
    for line in sys.stdin:
        if not line.strip():  # the end: a fork of the other side may keep the pipe open for long
            break
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return order
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)


def become(order: dict) -> None:
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir(order["folder"])
    torch.set_num_threads(1)
    sys.argv = [order["script"], *order["arguments"]]
    sys.path[0] = os.path.dirname(order["script"])
    runpy.run_path(order["script"], run_name="__main__")


def end(code: int) -> None:
    """What Python does at its end that a script can see; taking torch's modules and operators apart would cost half a
    second."""
    for finalizer in list(weakref.finalize._registry):
        if (known := finalizer.peek()) and getattr(known[1], "__module__", "") == "torch.library":
            finalizer.detach()
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    order = serve()
    try:
        become(order)
    except SystemExit as stop:
        end(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        end(1)
    end(0)
