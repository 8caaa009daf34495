"""Horovod's interface on Paceline: scripts with `import horovod.torch as hvd` run unchanged, without Horovod.

`torch/` is the surface of `horovod.torch`. `engine/` is what Horovod's C++ core does: a background thread on each
worker agrees with the others, by name, which operations every worker has submitted, fuses them and runs them. `common/`
holds the modules that scripts import as `horovod.common`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`horovod.run`, which brings the launcher with it: imported by those who call it."""
    if name == "run":
        from paceline.horovod.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
