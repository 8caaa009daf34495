"""What a worker of `horovod.run` runs: `python -m paceline.horovod.runner.task FOLDER`, started by `runner.run`."""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import types
from pathlib import Path

from paceline.horovod.runner.call import CALL, Call, result_file
from paceline.settings import of_this_process

MAIN = "__mp_main__"  # as multiprocessing calls the main program of a parent: `if __name__ == "__main__":` is not run


def main(folder: str) -> None:
    """Calls the function, and leaves its result in the folder."""
    call: Call = pickle.loads(Path(folder, CALL).read_bytes())
    sys.path[:] = [*call.path, *(entry for entry in sys.path if entry not in call.path)]
    if b"__main__" in call.pickled:
        _load_main(call)
    func, args, kwargs = pickle.loads(call.pickled)
    result = func(*args, **kwargs)
    file = result_file(folder, of_this_process().rank)
    half = file.with_name(f"{file.name}.half")
    half.write_bytes(_dumped(result))
    os.replace(half, file)


def _load_main(call: Call) -> None:
    """Makes the caller's main program this process's, so that pickle finds its functions and classes."""
    module = types.ModuleType(MAIN)
    if call.module:
        module.__dict__.update(runpy.run_module(call.module, run_name=MAIN, alter_sys=True))
    elif call.file:
        module.__dict__.update(runpy.run_path(call.file, run_name=MAIN))
    else:
        return
    sys.modules["__main__"] = sys.modules[MAIN] = module


def _dumped(result: object) -> bytes:
    try:
        import cloudpickle as packer
    except ImportError:
        packer = pickle
    return packer.dumps(result)


if __name__ == "__main__":
    main(sys.argv[1])
