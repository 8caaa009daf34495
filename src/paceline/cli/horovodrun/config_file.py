"""`horovodrun --config-file`: the flags' values in a YAML file, in Horovod's sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.cli.horovodrun.flags import BY_NAME, Read
from paceline.errors import UsageError

# What stands before a key of each section in the flag's name.
SECTIONS = {
    "params": "",
    "autotune": "autotune-",
    "timeline": "timeline-",
    "stall_check": "stall-check-",
    "library_options": "",
    "logging": "log-",
}
ENABLED = {"autotune": "--autotune", "stall_check": "--stall-check"}
NOT_ENABLED = {"autotune": "--no-autotune", "stall_check": "--no-stall-check"}


def read_config(path: str, into: Read) -> None:
    """Adds the values of the file. UsageError if it cannot be read, or for a key that is no flag."""
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"--config-file {path}: YAML files need the package PyYAML, which is not installed.",
            advice="Type: pip install pyyaml",
        ) from None
    try:
        told = yaml.safe_load(Path(path).read_text()) or {}
    except OSError as error:
        raise UsageError(
            f"--config-file {path} cannot be read: {error.strerror}.", advice="Type the path of a YAML file."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong(path, f"it is no YAML: {error}") from None
    if not isinstance(told, dict):
        raise _wrong(path, "it has no sections")
    for section, values in told.items():
        if section == "controller":
            continue  # gloo or mpi: both are accepted, without effect
        if section not in SECTIONS or not isinstance(values, dict):
            raise _wrong(path, f"{section!r} is not a section of it")
        for key, value in values.items():
            if value is not None:
                _take(path, section, str(key), value, into)


def _take(path: str, section: str, key: str, value: Any, into: Read) -> None:
    name = f"--{SECTIONS[section]}{key.replace('_', '-')}"
    if key == "enabled" and section in ENABLED:
        name = (ENABLED if value else NOT_ENABLED)[section]
    elif isinstance(value, bool) and not value and f"--no-{name[2:]}" in BY_NAME:
        name = f"--no-{name[2:]}"
    flag = BY_NAME.get(name)
    if flag is None:
        raise _wrong(path, f"{section}: {key} is not a value of it")
    into.take(name, flag, str(value))


def _wrong(path: str, why: str) -> UsageError:
    return UsageError(
        f"--config-file {path}: {why}.",
        advice=f"Sections: {', '.join(SECTIONS)}; their keys are flags, with _ for -: see paceline-horovodrun --help",
    )
