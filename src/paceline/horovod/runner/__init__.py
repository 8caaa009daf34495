"""`horovod.run`: runs a function on several workers, and returns what each of them returned.

The function travels in a file of a private temporary folder, and so do the results: by cloudpickle if that is
installed, else by pickle. Pickle knows functions by their name only: it cannot take a lambda, or a function inside a
function.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, UsageError
from paceline.horovod.runner.call import CALL, Call, result_file
from paceline.launch.cluster import hosts as host_lists
from paceline.launch.cluster.ssh import HERE

LAUNCHER = "paceline.cli.horovodrun.main"
TASK = "paceline.horovod.runner.task"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` on `num_proc` workers of this host, and returns the results in order of rank. The
    function calls `hvd.init()` itself. RuntimeError if a worker fails: its traceback is on standard error. Arguments
    that are about MPI and ssh are accepted."""
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile exclude each other: give one of them.")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi exclude each other: give one of them.")
    if np is not None:
        warnings.warn("np has become num_proc.", DeprecationWarning, stacklevel=2)
        num_proc = np
    elastic = {
        "min_num_proc": min_np if min_np is not None else min_num_proc,
        "max_num_proc": max_np if max_np is not None else max_num_proc,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
    }
    asked = next((name for name, value in elastic.items() if value is not None), None)
    if asked is not None:
        raise UsageError(
            f"horovod.run({asked}=…): elastic runs of Horovod functions are not supported yet.",
            advice=f"Leave {asked} out, and give num_proc.",
        )
    _check_hosts(hosts, hostfile)
    flags = ["-np", str(num_proc)]
    if hosts is not None:
        flags += ["-H", hosts]
    if hostfile is not None:
        flags += ["--hostfile", hostfile]
    if output_filename is not None:
        flags += ["--output-filename", output_filename]
    flags.append("--verbose" if verbose else "--quiet")
    with tempfile.TemporaryDirectory(prefix="paceline-call-") as folder:
        Path(folder, CALL).write_bytes(_packed(func, args, kwargs or {}))
        python = executable or sys.executable
        command = [python, "-m", LAUNCHER, *flags, "python", "-m", TASK, folder]
        code = subprocess.run(command, check=False).returncode
        if code:
            raise RuntimeError(
                f"horovod.run: {getattr(func, '__name__', func)!r} failed on one of {num_proc} workers (exit code "
                f"{code}). The worker's traceback is above."
            )
        # Of a class of the main program, the workers know that name.
        sys.modules["__mp_main__"] = sys.modules["__main__"]
        return [pickle.loads(result_file(folder, rank).read_bytes()) for rank in range(num_proc)]


def _check_hosts(hosts: str | None, hostfile: str | None) -> None:
    listed = host_lists.parse(hosts) if hosts is not None else host_lists.read(Path(hostfile)) if hostfile else []
    other = next((host.name for host in listed if host.name not in HERE), None)
    if other is not None:
        raise UsageError(
            f"horovod.run(hosts=…) runs a function on this host, and {other} is another one.",
            advice="Put the function into a script, and type: paceline-horovodrun -np 4 -H a:2,b:2 python train.py",
        )


def _packed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    main: Any = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    try:
        import cloudpickle as packer
    except ImportError:
        packer = pickle
    try:
        call = packer.dumps((func, tuple(args), dict(kwargs)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        advice = "Define the function at the top of a module" + ", or type: pip install cloudpickle" * (
            packer is pickle
        )
        raise PacelineError(f"horovod.run cannot send the function to its workers: {error}", advice=advice) from error
    return pickle.dumps(
        Call(
            call,
            path=list(sys.path),
            # cloudpickle sends what __main__ holds; pickle only sends its name.
            module=spec.name if packer is pickle and spec is not None else "",
            file=os.path.abspath(file) if packer is pickle and spec is None and file else "",
        )
    )
