"""A worker of an elastic run that was frozen with its host, and thawed: the others may have gone on without it.

Another worker has its files and its voice then. So the first thing that a thawed worker does, before the next line of
the script, is to ask whether it is still one of them. Knows of SIGSTOP and SIGCONT only: a virtual machine that was
paused sends no signal, and there the next message to the others tells.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from paceline.comm.members import Members


def watch(members: Members) -> None:
    """From now on a thawed worker that the others have given up ends. Called on the main thread."""
    own = os.getpid()

    def thawed(number: int, frame: Any) -> None:
        if os.getpid() == own:  # not in a loader's process, which ends with its worker
            members.look_after_thaw()

    signal.signal(signal.SIGCONT, thawed)
    signal.siginterrupt(signal.SIGCONT, False)
