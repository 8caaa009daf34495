"""Texts on their way out of a worker: cut to a length that a message can carry, and without what UTF-8 cannot say.

A script's exception may hold anything: megabytes of a tensor's numbers, or a file name with bytes that are no UTF-8
(Python keeps these as lone surrogates). Neither may keep the launcher from hearing of it.
"""

from __future__ import annotations

from typing import Any

MOST = 32_000  # characters of a text that goes to the launcher: at most six bytes each in JSON
_LINES = 200


def plain(text: str) -> str:
    """The text with lone surrogates written as escapes, as Python writes them to standard error."""
    return text.encode(errors="backslashreplace").decode()


def shortened(text: str, most: int = MOST) -> str:
    """Begin and end of a text that is too long to be read at a terminal; what is left out is said in between."""
    lines = text.splitlines()
    if len(lines) > _LINES:
        left_out = f"  ... ({len(lines) - _LINES:,} lines are left out here; the log has them)"
        text = "\n".join([*lines[: _LINES // 2], left_out, *lines[-_LINES // 2 :]])
    if len(text) > most:
        left_out = f"\n... ({len(text) - most:,} characters are left out here; the log has them)\n"
        text = text[: most // 2] + left_out + text[-most // 2 :]
    return text


def cleaned(value: Any) -> Any:
    """The same for every text in what JSON is made of."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(one) for one in value]
    return value
