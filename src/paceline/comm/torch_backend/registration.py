"""Registers `paceline` as a backend of torch.distributed, without importing torch.

If torch.distributed is already imported, the backend is registered at once, otherwise when torch.distributed is first
imported.
"""

from __future__ import annotations

from typing import Any

from paceline.imports import after_import

NAME = "paceline"
HOME = "torch.distributed.distributed_c10d"


def register() -> None:
    """Called by `import paceline`."""
    after_import(HOME, _register_with)


def _register_with(c10d: Any) -> None:
    # A torch build without distributed has no `Backend`.
    if not hasattr(c10d, "Backend") or NAME in c10d.Backend.backend_list:
        return

    def create(options: Any, settings: Any) -> Any:
        from paceline.comm.torch_backend.backend import Backend

        return Backend(options)

    c10d.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
