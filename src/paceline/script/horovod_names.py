"""The name `horovod` in a worker: Paceline's own interface, unless the real package is installed.

In a run as Horovod (`--as horovod`, or a script that calls `hvd.init()`) everybody finds it. In other runs only the
script's own files do, so that `hvd.init()` can say what to type; libraries that ask whether Horovod is there
(Lightning, Ignite) hear what plain Python tells them.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from paceline.imports import after_import, stand_in
from paceline.script.chance import kind_of
from paceline.script.seams import self_distributed
from paceline.script.seams.stage import Stage

NAME, HOME = "horovod", "paceline.horovod"
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
        return everybody or _is_asked_by_the_script()

    stand_in(NAME, HOME, asked=asked)
    after_import(f"{HOME}.common.basics", _see_init)


def _see_init(basics: Any) -> None:
    """From now on `hvd.init()` tells the stage that the script distributes itself."""
    plain = basics.init

    def init(*args: Any, **kwargs: Any) -> None:
        self_distributed.joins_by_horovod()
        plain(*args, **kwargs)

    basics.init = functools.wraps(plain)(init)


def _is_asked_by_the_script() -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        kind = kind_of(frame.f_code.co_filename)
        if kind:
            # With -m, the script itself may be a module of an installed package.
            return kind == "script" or frame.f_globals.get("__name__") == "__main__"
        frame = frame.f_back
    return False
