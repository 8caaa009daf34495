"""`paceline` and `python -m paceline`.

For the verbs that start workers, the zygote is started before anything else is imported: it needs seconds for
torch, and all that this process has to import and parse happens meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

STARTS_WORKERS = ("run", "scale")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    zygote = None
    if len(arguments) > 1 and arguments[0] in STARTS_WORKERS and arguments[1] != "--help":
        from paceline.launch import Zygote

        zygote = Zygote.start()

    from paceline.cli.app import command_line

    return command_line(arguments, zygote)


if __name__ == "__main__":
    sys.exit(main())
