"""`paceline` and `python -m paceline`.

For the verbs that start workers, the zygote is started before anything else is imported: it needs seconds for
torch, and all that this process has to import and parse happens meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

STARTS_WORKERS = ("run", "scale", "sweep", "tune", "profile", "bandwidth")


def _starts_workers(arguments: Sequence[str]) -> bool:
    verb, *rest = arguments or [""]
    if rest[:1] == ["--help"] or verb not in STARTS_WORKERS:
        return False
    if verb == "profile" and "--trace" in rest:
        return False  # reads files; or it is the script's own, and the workers wait a little
    return bool(rest) or verb == "bandwidth"  # the others need a script


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    zygote = None
    if _starts_workers(arguments):
        from paceline.launch import Zygote

        zygote = Zygote.start()

    from paceline.cli.app import command_line

    return command_line(arguments, zygote)


if __name__ == "__main__":
    sys.exit(main())
