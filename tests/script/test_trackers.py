"""Experiment trackers on a rank above 0: nothing is sent, and the script goes on as on rank 0.

The libraries are small stand-ins, with the functions that scripts call; `sent` is what would go over the network.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pool import Pool
from silent import in_silence

from paceline.script.output.trackers import Nothing, is_remote

LIBRARIES = {
    "mlflow": """
import types
sent, _uri, _registry = [], "http://tracking:5000", None
environment_variables = types.SimpleNamespace()
def set_tracking_uri(uri):
    global _uri
    _uri = uri
def get_tracking_uri():
    return _uri
def set_registry_uri(uri):
    global _registry
    _registry = uri
def get_registry_uri():
    return _registry or _uri
def _send(what, uri=None):
    if (uri or _uri).startswith("http"):
        sent.append(what)
    return what
def start_run(): return _send("run")
def set_experiment(name): return _send("experiment")
def log_metric(name, value, step=None): return _send("metric")
def register_model(uri, name): return _send("model")
class MlflowClient:
    def __init__(self, tracking_uri=None, registry_uri=None): self.uri = tracking_uri or _uri
    def log_metric(self, run, name, value): return _send("metric", self.uri)
    def create_registered_model(self, name): sent.append("model")
    def get_model_version(self, name, version): return get_registry_uri()
""",
    "comet_ml": """
sent = []
class Experiment:
    def __init__(self, api_key=None, disabled=False):
        self.disabled = disabled
        self.log_metric("start", 1)
    def log_metric(self, name, value, step=None):
        if not self.disabled: sent.append(name)
def start(project=None): return Experiment()
def login(): sent.append("login")
""",
    "neptune": """
sent = []
class Run:
    def __init__(self, project=None, mode="async"):
        self.mode = mode
        if mode != "debug": sent.append("run")
def init_run(project=None, mode="async"): return Run(project, mode=mode)
""",
    "neptune_scale": """
sent = []
class Run:
    def __init__(self, project=None, mode="async"):
        if mode != "disabled": sent.append("run")
""",
    "aim": """
sent = []
class Run:
    def __init__(self, repo=None): sent.append("run")
    def track(self, value, name=None): sent.append(name)
""",
}


def imported(name: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(os.getcwd())


def log_to_mlflow() -> Any:
    mlflow = imported("mlflow")
    mlflow.set_experiment("demo")
    mlflow.start_run()
    mlflow.log_metric("loss", 1.0, step=1)
    mlflow.set_tracking_uri("databricks")
    mlflow.set_tracking_uri("https://another")
    mlflow.log_metric("loss", 1.0)
    mlflow.MlflowClient(tracking_uri="http://third").log_metric("run", "loss", 1.0)
    mlflow.MlflowClient("http://third").create_registered_model("name")
    version = mlflow.register_model("runs:/x", "name").version
    registry = mlflow.MlflowClient().get_model_version("name", 1)
    mlflow.set_tracking_uri("sqlite:///runs.db")  # is covered by the layer over the files
    database = mlflow.get_tracking_uri()
    os.makedirs("mlruns/3")
    Path("mlruns/3/meta.yaml").write_text("name: demo")
    mlflow.set_tracking_uri(f"file:{os.path.abspath('mlruns')}")
    own = Path(mlflow.get_tracking_uri().removeprefix("file://"))
    seen = own != Path("mlruns").absolute(), (own / "3" / "meta.yaml").read_text()
    return mlflow.sent, str(version), registry, database, seen


def log_to_comet() -> Any:
    comet = imported("comet_ml")
    comet.login()
    for run in (comet.Experiment("key"), comet.start(project="demo")):
        run.log_metric("loss", 1.0)
    return comet.sent


def log_to_neptune() -> Any:
    neptune, scale = imported("neptune"), imported("neptune_scale")
    runs = neptune.init_run(project="a/b"), neptune.Run(project="a/b"), neptune.init_run(mode="read-only")
    scale.Run("a/b")
    return neptune.sent, scale.sent, [run.mode for run in runs]


def log_to_aim() -> Any:
    aim = imported("aim")

    class Own(aim.Run):  # type: ignore[misc, name-defined]
        pass

    for run in (aim.Run(repo="."), Own()):
        run["hparams"] = {"lr": 0.1}
        run.track(1.0, name="loss")
        with run:
            pass
    return aim.sent, isinstance(aim.Run, type)


def write_to_a_bucket() -> Any:
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Bucket(MemoryFileSystem):
        protocol = "bucket"

    fsspec.register_implementation("bucket", Bucket, clobber=True)
    with fsspec.open("bucket://runs/metrics.csv", "w") as file:
        file.write("step,loss\n")
    with fsspec.open("local.csv", "w") as file:
        file.write("step,loss\n")
    return Bucket().exists("/runs/metrics.csv"), os.path.exists("local.csv")


@pytest.mark.parametrize(
    ("log", "seen"),
    [
        (log_to_mlflow, ([], "nothing", "https://another", "sqlite:///runs.db", (True, "name: demo"))),
        (log_to_comet, []),
        (log_to_neptune, (["run"], [], ["debug", "debug", "read-only"])),
        (log_to_aim, ([], True)),
        (write_to_a_bucket, (False, True)),
    ],
)
def test_nothing_is_sent(silent: tuple[Pool, Path], tmp_path: Path, log: Callable[[], Any], seen: Any) -> None:
    for name, text in LIBRARIES.items():
        (tmp_path / f"{name}.py").write_text(text)
    before = sorted(tmp_path.iterdir())
    assert in_silence(silent, log, tmp_path) == seen
    assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == before


def test_places_on_other_machines_are_known() -> None:
    for place in ("http://a:5000", "https://a", "databricks", "databricks://profile", "s3://a/b", "postgresql+x://a/b"):
        assert is_remote(place), place
    for place in ("mlruns", "file:///a/b", "sqlite:///a.db", "/a/b", "C:\\a", Path("a"), None, 3, ""):
        assert not is_remote(place), place


def test_nothing_takes_everything() -> None:
    nothing = Nothing()
    nothing["a"]["b"] = 3
    with nothing.run(x=1) as run:
        assert list(run.items()) == []
    assert str(nothing.id) == "nothing"
    assert not hasattr(nothing, "__array__")
