"""Addresses of pages."""

from __future__ import annotations

from urllib.parse import quote


def href(page: str, name: str) -> str:
    """The address of a record's page."""
    return f"/{page}/{quote(name)}"
