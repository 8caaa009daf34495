"""Devices and links: what this machine is made of."""

from paceline.topology.host import Core, Host, discover

__all__ = ["Core", "Host", "discover"]
