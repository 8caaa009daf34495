"""Workers with torch.distributed groups, shared by the tests of the backend."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import Worlds


@pytest.fixture
def worlds(pool: Any) -> Worlds:
    """`worlds.run(function, *args)`: function(world, *args) on four workers with groups over Gloo and `paceline`."""
    return Worlds(pool)
