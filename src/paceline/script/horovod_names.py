"""The name `horovod` in a worker: Paceline's own interface, unless the real package is installed.

In a run as Horovod (`--as horovod`, or a script that calls `hvd.init()`) everybody finds it. In other runs whoever asks
whether Horovod is there (Lightning, Ignite; a script with `try: import horovod.torch`) hears what plain Python tells: a
script for a single process stays one. Only an import of the script's own that would fail is given the package, so that
`hvd.init()`, if it is called, can say what to type.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any, Literal

from paceline.imports import after_import, stand_in
from paceline.script.chance import kind_of
from paceline.script.seams import self_distributed
from paceline.script.seams.stage import Stage

NAME: Literal["horovod"] = "horovod"
HOME = "paceline.horovod"
ELSEWHERE = {
    "tensorflow": "TensorFlow",
    "mxnet": "MXNet",
    "spark": "Spark",
    "ray": "Ray",
}


def install(stage: Stage) -> None:
    """Called once in each worker, before its script."""
    everybody = stage.run.launch_as == "horovod"

    def asked(name: str) -> bool:
        part = name.partition(".")[2].partition(".")[0]
        if part in ELSEWHERE:
            raise ModuleNotFoundError(
                f"{NAME}.{part}: Paceline has Horovod's interface for PyTorch (horovod.torch) and for Keras 3 on "
                f"PyTorch (horovod.keras), not for {ELSEWHERE[part]}.",
                name=name,
            )
        return everybody or _is_needed(stage)

    stand_in(NAME, HOME, asked=asked)
    after_import(f"{HOME}.common.basics", _see_init)


def _see_init(basics: Any) -> None:
    """From now on `hvd.init()` tells the stage that the script distributes itself."""
    plain = basics.init

    def init(*args: Any, **kwargs: Any) -> None:
        self_distributed.joins_by_horovod()
        plain(*args, **kwargs)

    basics.init = functools.wraps(plain)(init)


def _is_needed(stage: Stage) -> bool:
    """Whether an import statement of the script's own, which nothing protects against its failure, is what asks."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file in ("<frozen importlib.util>", importlib.util.__file__):
            return False  # importlib.util.find_spec only asks
        if kind := kind_of(file):
            # With -m, the script itself may be a module of an installed package.
            if kind != "script" and frame.f_globals.get("__name__") != "__main__":
                return False
            if not _is_protected(file, frame.f_lineno):
                return True
            stage.pulse.notice(
                f"{file}:{frame.f_lineno} imports Horovod if it is installed. The script runs as one for a single "
                f"process, without Horovod. If it shall use Horovod, type: {self_distributed.command(stage.run, NAME)}"
            )
            return False
        frame = frame.f_back
    return False


def _is_protected(file: str, line: int) -> bool:
    """Whether the statement stands in a `try:` that catches a failed import."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(part.lineno <= line <= (part.end_lineno or 0) for part in node.body):
            caught = " ".join(ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers)
            if any(word in caught for word in ("ImportError", "ModuleNotFoundError", "Exception")):
                return True
    return False
