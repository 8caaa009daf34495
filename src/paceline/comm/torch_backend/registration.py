"""Registers `paceline` as a backend of torch.distributed, without importing torch.

If torch.distributed is already imported, the backend is registered at once, otherwise when torch.distributed is first
imported.
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
        _register_with(sys.modules[HOME])
    else:
        sys.meta_path.insert(0, _ImportHook())


def _register_with(c10d: Any) -> None:
    # A torch build without distributed has no `Backend`.
    if not hasattr(c10d, "Backend") or NAME in c10d.Backend.backend_list:
        return

    def create(options: Any, settings: Any) -> Any:
        from paceline.comm.torch_backend.backend import Backend

        return Backend(options)

    c10d.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


class _ImportHook(importlib.abc.MetaPathFinder):
    """Registers the backend at the first import of torch.distributed, then removes itself."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != HOME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _register_with(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
