"""Executes a script as `python` would: as `__main__`, with its own arguments and its folder on the path."""

from __future__ import annotations

import os
import runpy
import sys
import types

from paceline.settings import RunSettings


def play(run: RunSettings) -> None:
    """Runs the script to its end. Exceptions and SystemExit of the script pass through."""
    if run.module:
        sys.argv = [run.script, *run.arguments]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(run.script, run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(run.script)
    sys.argv = [run.script, *run.arguments]
    sys.path.insert(0, os.path.dirname(path))
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    main.__spec__ = None
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main  # the second name is for spawned processes
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, main.__dict__)
