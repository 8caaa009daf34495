"""The devices and links of a machine."""

from paceline.topology.host import Core, Host, discover

__all__ = ["Core", "Host", "discover"]
