"""The machine that writes traces lives with the tables."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tables"))
