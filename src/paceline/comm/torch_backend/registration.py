"""Makes `paceline` a backend of torch.distributed, without importing torch for it.

If torch.distributed is there it is told at once, else as soon as somebody imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any

NAME = "paceline"
HOME = "torch.distributed.distributed_c10d"


def register() -> None:
    """Called by `import paceline`."""
    if HOME in sys.modules:
        _tell(sys.modules[HOME])
    else:
        sys.meta_path.insert(0, _Once())


def _tell(c10d: Any) -> None:
    if not hasattr(c10d, "Backend") or NAME in c10d.Backend.backend_list:  # a torch without distributed; told before
        return

    def create(options: Any, settings: Any) -> Any:
        from paceline.comm.torch_backend.backend import Backend

        return Backend(options)

    c10d.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


class _Once(importlib.abc.MetaPathFinder):
    """Waits for one import, and goes."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != HOME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _tell(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
