"""Functions that wait for an import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paceline.imports import after_import, holders, stand_in


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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that stands in for another one, and what is in sys.modules and sys.meta_path afterwards."""
    package = tmp_path / "home_of_it"
    (package / "part").mkdir(parents=True)
    (package / "__init__.py").write_text("name = __name__")
    (package / "part" / "__init__.py").write_text("import home_of_it.part.leaf\nloaded = []")
    (package / "part" / "leaf.py").write_text("import home_of_it.part\nvalue = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("home_of_it", "absent_one"):
            del sys.modules[name]
    return tmp_path


def test_a_package_stands_in_for_one_that_is_not_installed(home: Path) -> None:
    stand_in("absent_one", "home_of_it", asked=lambda name: True)
    for name in ("absent_one.part.leaf", "absent_one.part", "absent_one"):
        assert importlib.import_module(name) is importlib.import_module(name.replace("absent_one", "home_of_it"))
    names: dict[str, ModuleType] = {}
    exec("import absent_one.part as part\nfrom absent_one.part import leaf\nfrom absent_one import part as same", names)
    assert names["leaf"].__name__ == "home_of_it.part.leaf"
    assert names["part"] is names["same"]
    assert importlib.util.find_spec("absent_one.other") is None
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'absent_one\.other'"):
        importlib.import_module("absent_one.other")


def test_an_installed_package_is_never_mixed_with_its_stand_in(home: Path) -> None:
    stand_in("absent_one", "home_of_it", asked=lambda name: True)
    (home / "absent_one").mkdir()
    (home / "absent_one" / "__init__.py").write_text("real = True")
    importlib.invalidate_caches()
    importlib.import_module("home_of_it")
    assert importlib.import_module("absent_one").real
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_one.part")


def test_a_stand_in_may_be_declined_by_name(home: Path) -> None:
    def asked(name: str) -> bool:
        if name == "absent_one.part":
            raise ImportError("there is no part")
        return True

    stand_in("absent_one", "home_of_it", asked=asked)
    importlib.import_module("absent_one")
    with pytest.raises(ImportError, match="there is no part"):
        importlib.import_module("absent_one.part.leaf")


def test_who_holds_an_object_is_found_in_modules_old_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = object()
    for name in ("holder_1", "holder_2", "holder_3"):
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
        vars(module)["kept"] = thing
        assert [module.__name__ for module, _ in holders(thing)][-1] == name
    vars(sys.modules["holder_1"])["kept"] = None
    assert [(module.__name__, name) for module, name in holders(thing)] == [("holder_2", "kept"), ("holder_3", "kept")]
