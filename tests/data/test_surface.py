"""What `import paceline.data` promises, and what it needs."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import paceline.data as pd

ROOM = Path(pd.__file__).parent
LIGHT = {"torch", "numpy", "msgspec", "zmq", "paceline"}
NAMES = [
    "ColorJitter",
    "Crop",
    "Cutout",
    "Flip",
    "Mixup",
    "Normalize",
    "Pipeline",
    "Writer",
    "arrays",
    "cifar",
    "dataset",
    "decode_example",
    "decode_image",
    "decode_sample",
    "drop_in",
    "encode_example",
    "encode_sample",
    "files",
    "idx",
    "image_folder",
    "indexed",
    "items",
    "lines",
    "mix",
    "pack",
    "stream",
]


def test_the_public_names() -> None:
    assert sorted(pd.__all__) == sorted(NAMES)


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.name)
def test_only_what_is_asked_for_is_imported(path: Path) -> None:
    """At the top: nothing that a machine with torch does not have. Other packages when they are needed."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    assert found - set(sys.stdlib_module_names) <= LIGHT
