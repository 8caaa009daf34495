"""Horovod's exceptions, by Horovod's names."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective has failed on every rank: the ranks asked for different things, or a rank is gone."""


class HostsUpdatedInterrupt(RuntimeError):
    """In an elastic run: the set of hosts has changed. Training goes on from the present state."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("The hosts of the run have changed.")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Never raised here: Paceline has no compiled part that depends on a framework's version."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} {version} was found, but {installed_version} is needed.")
        self.name, self.version, self.installed_version = name, version, installed_version
