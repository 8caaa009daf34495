"""Prepares a worker's texts for a message: shortens them, and escapes characters that UTF-8 cannot encode.

A script's exception may hold megabytes of a tensor's numbers, or a file name whose bytes are not valid UTF-8 (Python
keeps such bytes as lone surrogates). The launcher must get the report in both cases.
"""

from __future__ import annotations

from typing import Any

MOST = 32_000  # most characters of a text to the launcher; JSON needs up to six bytes per character
_LINES = 200


def plain(text: str) -> str:
    """The text with lone surrogates written as escapes, as Python writes them to standard error."""
    return text.encode(errors="backslashreplace").decode()


def shortened(text: str, most: int = MOST) -> str:
    """The text, or the beginning and the end of a long text with a note between them that says how much is left out."""
    lines = text.splitlines()
    if len(lines) > _LINES:
        left_out = f"  ... ({len(lines) - _LINES:,} lines are left out here; the log has them)"
        text = "\n".join([*lines[: _LINES // 2], left_out, *lines[-_LINES // 2 :]])
    if len(text) > most:
        left_out = f"\n... ({len(text) - most:,} characters are left out here; the log has them)\n"
        text = text[: most // 2] + left_out + text[-most // 2 :]
    return text


def cleaned(value: Any) -> Any:
    """Applies `plain` to every text in a JSON-like value."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(one) for one in value]
    return value
