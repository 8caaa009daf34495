"""Experiment trackers on ranks above 0: they write nothing that anybody could see. One run for all workers is rank 0's.

Trackers that write files (TensorBoard, MLflow's file store, CSV loggers) are covered by the layer over the files. Those
that send over the network, or write from a process or in native code of their own, are led here: to their own offline
or disabled mode where they have one, so that what a script asks of them still works; else to `Nothing`.
"""

from __future__ import annotations

import functools
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from paceline.imports import after_import

LOCAL = ("", "file", "local", "memory", "sqlite")  # schemes whose files the layer sees
REGISTRY = (
    "create_registered_model",
    "create_model_version",
    "delete_model_version",
    "delete_model_version_tag",
    "delete_registered_model",
    "delete_registered_model_alias",
    "delete_registered_model_tag",
    "rename_registered_model",
    "set_model_version_tag",
    "set_registered_model_alias",
    "set_registered_model_tag",
    "transition_model_version_stage",
    "update_model_version",
    "update_registered_model",
)


class Nothing:
    """Takes every call, item and attribute, and does nothing: a tracker's run that nobody sees."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __str__(self) -> str:
        return "nothing"


def install(scratch: str, is_silent: Callable[[], bool]) -> None:
    """Patches this process. `scratch` is a folder that nobody reads; `is_silent()` is False once this worker is rank
    0."""
    patches = {
        "wandb": _wandb,
        "mlflow": _mlflow,
        "comet_ml": _comet,
        "neptune": _neptune,
        "neptune_scale": _neptune_scale,
        "aim": _aim,
        "torch.utils.tensorboard.writer": _tensorboard,
        "tensorboardX.writer": _tensorboard,
        "fsspec.spec": _fsspec,
    }
    for name, patch in patches.items():
        after_import(name, functools.partial(patch, scratch, is_silent))


def is_remote(place: Any) -> bool:
    """Whether a path or URI leads to another machine."""
    if not isinstance(place, (str, os.PathLike)):
        return False
    text = os.fspath(place)
    scheme = text.partition("://")[0] if isinstance(text, str) and "://" in text else ""
    return (scheme or ("databricks" if text == "databricks" else "")).partition("+")[0] not in LOCAL


def _instead(holder: Any, name: str, is_silent: Callable[[], bool], change: Callable[..., Any]) -> None:
    """Replaces a function by `change(plain, args, kwargs)`, as long as this worker is silent."""
    plain = getattr(holder, name, None)
    if plain is None:
        return  # another version of the library

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return change(plain, args, kwargs) if is_silent() else plain(*args, **kwargs)

    setattr(holder, name, call)


def _wandb(scratch: str, is_silent: Callable[[], bool], module: Any) -> None:
    """wandb writes, and sends, from a process of its own. The other ranks have an offline run in their scratch folder,
    and not a disabled one, so that `wandb.watch` sets its hooks on all workers."""

    def init(plain: Any, args: Any, kwargs: Any) -> Any:
        if "disabled" in (kwargs.get("mode"), module.setup().settings.mode):
            return plain(*args, **kwargs)
        folder = os.path.join(scratch, "wandb")
        os.makedirs(folder, exist_ok=True)
        return plain(*args, **{**kwargs, "mode": "offline", "dir": folder})

    _instead(module, "init", is_silent, init)


def _mlflow(scratch: str, is_silent: Callable[[], bool], module: Any) -> None:
    """A tracking server, or a file store, becomes a file store in the scratch folder; the layer sees databases. (All
    workers draw the same run id, and MLflow fails where rank 0's files of that run are there already.) Models are still
    read from the server's registry; what would change the registry does nothing."""
    plain_set, followed = module.set_tracking_uri, list[str]()

    def local(where: str) -> str:
        """The store that stands for this one."""
        own = os.path.join(scratch, "mlruns", str(zlib.crc32(where.encode())))
        if not is_remote(where) and not os.path.isdir(own):
            _copy_experiments(urlsplit(where).path, own)
        return f"file://{own}"

    def is_led(where: str) -> bool:
        return is_remote(where) or (urlsplit(where).scheme in ("", "file") and scratch not in where)

    def lead() -> None:
        where = module.get_tracking_uri()
        if is_led(where):
            if allowed := getattr(module.environment_variables, "MLFLOW_ALLOW_FILE_STORE", None):
                allowed.set(True)  # later versions refuse a file store, which needs no database, unless this is set
            registry = module.get_registry_uri()
            plain_set(local(where))
            followed[:] = [where if registry in followed else registry]  # as without us: it follows, unless it was set
            module.set_registry_uri(followed[0])

    def set_uri(plain: Any, args: Any, kwargs: Any) -> Any:
        plain(*args, **kwargs)
        lead()

    def led(plain: Any, args: Any, kwargs: Any) -> Any:
        lead()
        return plain(*args, **kwargs)

    def client(plain: Any, args: Any, kwargs: Any) -> Any:
        lead()
        given = list(args)
        if len(given) > 1 and isinstance(given[1], str) and is_led(given[1]):
            given[1] = local(given[1])
        uri = kwargs.get("tracking_uri")
        if isinstance(uri, str) and is_led(uri):
            kwargs = {**kwargs, "tracking_uri": local(uri)}
        return plain(*given, **kwargs)

    _instead(module, "set_tracking_uri", is_silent, set_uri)
    for name in ("start_run", "set_experiment", "create_experiment", "autolog", "log_metric", "log_param"):
        _instead(module, name, is_silent, led)
    _instead(module, "register_model", is_silent, lambda *_: Nothing())
    _instead(module.MlflowClient, "__init__", is_silent, client)
    for name in REGISTRY:
        _instead(module.MlflowClient, name, is_silent, lambda *_: Nothing())


def _copy_experiments(store: str, own: str) -> None:
    """The experiments of a file store, without their runs, which may be many."""
    if not os.path.isdir(store):
        return
    for name in os.listdir(store):
        about = os.path.join(store, name, "meta.yaml")
        if os.path.isfile(about):
            os.makedirs(os.path.join(own, name))
            shutil.copyfile(about, os.path.join(own, name, "meta.yaml"))


def _comet(scratch: str, is_silent: Callable[[], bool], module: Any) -> None:
    def disabled(plain: Any, args: Any, kwargs: Any) -> Any:
        return plain(*args, **{**kwargs, "disabled": True})

    for name in ("Experiment", "ExistingExperiment", "OfflineExperiment", "ExistingOfflineExperiment"):
        if (kind := getattr(module, name, None)) is not None:
            _instead(kind, "__init__", is_silent, disabled)

    def start(plain: Any, args: Any, kwargs: Any) -> Any:
        return module.Experiment(api_key="none", disabled=True)

    _instead(module, "start", is_silent, start)
    for name in ("login", "init"):
        _instead(module, name, is_silent, lambda *_: None)


def _neptune(scratch: str, is_silent: Callable[[], bool], module: Any) -> None:
    def debug(plain: Any, args: Any, kwargs: Any) -> Any:
        mode = kwargs.get("mode")
        return plain(*args, **{**kwargs, "mode": mode if mode == "read-only" else "debug"})

    for name in ("init_run", "init_model", "init_model_version", "init_project"):
        _instead(module, name, is_silent, debug)
    for name in ("Run", "Model", "ModelVersion", "Project"):
        if (kind := getattr(module, name, None)) is not None:
            _instead(kind, "__init__", is_silent, debug)


def _neptune_scale(scratch: str, is_silent: Callable[[], bool], module: Any) -> None:
    def disabled(plain: Any, args: Any, kwargs: Any) -> Any:
        return plain(*args, **{**kwargs, "mode": "disabled"})

    if hasattr(module, "Run"):
        _instead(module.Run, "__init__", is_silent, disabled)


def _aim(scratch: str, is_silent: Callable[[], bool], module: Any) -> None:
    """Aim writes a database in native code, from threads of its own."""
    plain = module.Run.__new__

    def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
        if is_silent():
            return Nothing()
        return plain(kind) if plain is object.__new__ else plain(kind, *args, **kwargs)

    module.Run.__new__ = new


def _tensorboard(scratch: str, is_silent: Callable[[], bool], module: Any) -> None:
    """The layer sees local event files; those in a bucket go to the scratch folder."""

    def init(plain: Any, args: Any, kwargs: Any) -> Any:
        given, name = list(args), "logdir" if "logdir" in kwargs else "log_dir"
        folder = given[1] if len(given) > 1 else kwargs.get(name)
        if is_remote(folder):
            own = os.path.join(scratch, "tensorboard")
            if len(given) > 1:
                given[1] = own
            else:
                kwargs = {**kwargs, name: own}
        return plain(*given, **kwargs)

    _instead(module.SummaryWriter, "__init__", is_silent, init)


def _fsspec(scratch: str, is_silent: Callable[[], bool], module: Any) -> None:
    """Files on other machines (`s3://…`), as pandas and CSV loggers open them: what is written goes nowhere."""

    def opened(plain: Any, args: Any, kwargs: Any) -> Any:
        system, mode = args[0], kwargs.get("mode", args[2] if len(args) > 2 else "rb")
        kinds = system.protocol if isinstance(system.protocol, (tuple, list)) else (system.protocol,)
        if not set(mode) & set("wax+") or set(kinds) & set(LOCAL):
            return plain(*args, **kwargs)
        text = {name: kwargs[name] for name in ("encoding", "errors", "newline") if name in kwargs}
        return open(os.devnull, mode.replace("x", "w"), **({} if "b" in mode else text))

    _instead(module.AbstractFileSystem, "open", is_silent, opened)
