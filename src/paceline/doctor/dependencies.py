"""The required packages, and the optional packages with what each unlocks. A test compares both lists with
pyproject.toml."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from paceline.errors import UsageError

REQUIRED = (
    "torch",
    "numpy",
    "msgspec",
    "pyzmq",
    "psutil",
    "typer",
    "rich",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optional:
    """A package of an extra: pip install 'paceline[extra]'."""

    name: str
    extra: str
    unlocks: str


OPTIONAL = (
    Optional(name="polars", extra="view", unlocks="paceline profile and paceline view: tables of traces"),
    Optional(name="starlette", extra="view", unlocks="paceline view: the pages"),
    Optional(name="uvicorn", extra="view", unlocks="paceline view: the pages"),
    Optional(name="jinja2", extra="view", unlocks="paceline view: the pages"),
    Optional(name="nvidia-ml-py", extra="gpu", unlocks="GPU names, links and utilisation in topo, profile and view"),
    Optional(name="google-crc32c", extra="data", unlocks="TFRecord files and --tensorboard: their checksums"),
    Optional(name="fsspec", extra="data", unlocks="data on s3://, gs:// and other storage"),
    Optional(name="pillow", extra="data", unlocks="decoding of PNG and other images"),
    Optional(name="simplejpeg", extra="data", unlocks="fast decoding of JPEG images"),
    Optional(name="cloudpickle", extra="horovod", unlocks="lambdas and local functions in horovod.run"),
    Optional(name="pyyaml", extra="horovod", unlocks="paceline-horovodrun --config-file"),
)


def versions(names: Iterable[str]) -> dict[str, str]:
    """The installed version of each package; empty if the package is missing."""
    import importlib.metadata  # slow to import

    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def need(extra: str, verb: str) -> None:
    """UsageError if a package of this extra is missing."""
    missing = [package.name for package in OPTIONAL if package.extra == extra and not _is_there(package.name)]
    if missing:
        raise UsageError(
            f"paceline {verb} needs packages that are not installed: {', '.join(missing)}.",
            advice=f"Type: pip install 'paceline[{extra}]'",
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
