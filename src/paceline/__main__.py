"""`paceline` and `python -m paceline`.

For the verbs that start workers, the zygote is started before anything else is imported: it needs seconds for
torch, and all that this process has to import and parse happens meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.errors import LaunchError

STARTS_WORKERS = ("run", "scale", "sweep", "tune", "profile", "bandwidth", "demo")


def _starts_workers(arguments: Sequence[str]) -> bool:
    verb, *rest = arguments or [""]
    if rest[:1] == ["--help"] or verb not in STARTS_WORKERS:
        return False
    if verb == "profile" and "--trace" in rest:
        return False  # reads files; or it is the script's own, and the workers wait a little
    return bool(rest) or verb in ("bandwidth", "demo")  # the others need a script


def _refuse(verb: str, error: LaunchError, *, json: bool) -> int:
    """Where nothing can be started, most of what tells errors otherwise cannot be imported, either."""
    print(f"paceline: {error.message}\n  {error.advice}", file=sys.stderr)
    if json:
        import json as standard

        told = {"type": "LaunchError", "message": error.message, "advice": error.advice}
        print(standard.dumps({"schema": 1, "verb": verb, "record": None, "error": told}))
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    zygote = None
    if _starts_workers(arguments):
        from paceline.errors import LaunchError
        from paceline.launch import Zygote

        try:
            zygote = Zygote.start()
        except LaunchError as error:
            return _refuse(arguments[0], error, json="--json" in arguments)

    from paceline.cli.app import command_line

    return command_line(arguments, zygote)


if __name__ == "__main__":
    sys.exit(main())
