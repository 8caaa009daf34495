"""Functions that wait for an import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paceline.imports import after_import


def test_a_module_that_was_looked_for_before_its_import_is_still_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "looked_for.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[ModuleType] = []
    after_import("looked_for", seen.append)
    try:
        assert importlib.util.find_spec("looked_for") is not None  # as transformers asks what is installed
        assert not seen
        module = importlib.import_module("looked_for")
        assert seen == [module]
        importlib.reload(module)
        assert seen == [module]
    finally:
        sys.modules.pop("looked_for", None)
