"""Entry point of `paceline` and `python -m paceline`.

For the verbs that start workers, the zygote starts before any other import: the zygote imports torch for seconds, and
this process imports its own modules and parses the command line in the meantime.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.cli.session import Session
    from paceline.errors import PacelineError

STARTS_WORKERS = ("run", "scale", "sweep", "fit", "tune", "profile", "bandwidth", "demo")


def _starts_workers(arguments: Sequence[str]) -> bool:
    verb, *rest = arguments or [""]
    if rest[:1] in (["--help"], ["-h"]) or verb not in STARTS_WORKERS:
        return False
    if verb == "profile" and "--trace" in rest:
        # `--trace` reads files and needs no zygote. If it is an option of the script, the zygote only starts later.
        return False
    if any(word.partition("=")[0] in ("--hosts", "--hostfile", "--discover", "--rendezvous", "--on") for word in rest):
        return False  # each host's agent starts its own
    from paceline.settings import is_one_of_several  # slow to import, and help needs none of it

    if is_one_of_several():
        return False
    return bool(rest) or verb in ("bandwidth", "demo")  # every other verb needs a script


def _refuse(verb: str, error: PacelineError, *, json: bool, code: int = 1) -> int:
    """Reports the error with the standard library only: on a machine that cannot start a process, the import of the
    command line's own error report may fail too."""
    print(f"paceline: {error.message}" + (f"\n  {error.advice}" if error.advice else ""), file=sys.stderr)
    if json:
        import json as standard

        told = {"type": type(error).__name__, "message": error.message, "advice": error.advice}
        print(standard.dumps({"schema": 1, "verb": verb, "record": None, "error": told}))
    return code


def main(
    argv: Sequence[str] | None = None,
    *,
    ended: Callable[[Session], None] | None = None,
    command: Sequence[str] = (),
) -> int:
    """The command line; returns the exit code. `ended` is called after the verb, also if it failed. `command`: what was
    typed, if it was another program that stands for these arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    zygote = None
    json = "--json" in arguments
    try:
        from paceline.errors import LaunchError, PacelineError

        if _starts_workers(arguments):
            from paceline.launch import Zygote

            try:
                zygote = Zygote.start()
            except LaunchError as error:
                return _refuse(arguments[0], error, json=json)

        from paceline.cli.app import command_line
    except KeyboardInterrupt:  # nothing has begun yet: the zygote ends with this process
        return _refuse(arguments[0], PacelineError("interrupted"), json=json, code=128 + signal.SIGINT)
    return command_line(arguments, zygote, ended=ended, command=command)


if __name__ == "__main__":
    sys.exit(main())
