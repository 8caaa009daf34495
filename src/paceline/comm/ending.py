"""A failure that ends the run, whatever the script does with exceptions.

A lost peer, workers that have parted and a refused script leave Paceline as `Fatal`, a BaseException, which
`except Exception` does not catch. The first failure is kept, and the launcher hears of it at once. A script that
catches it all the same (a bare `except:`) meets it again at the next seam or collective, and at its end.
"""

from __future__ import annotations

from paceline.comm.pulse import Pulse
from paceline.errors import PacelineError


class Fatal(BaseException):
    """Carries a PacelineError out of a script."""

    def __init__(self, error: PacelineError) -> None:
        super().__init__(str(error))
        self.error = error


class Ending:
    """One per worker, made by its stage. `stern` under `paceline run`; with the API errors stay ordinary exceptions."""

    def __init__(self, pulse: Pulse | None = None) -> None:
        self.stern = False
        self.first: PacelineError | None = None
        self._pulse = pulse

    def carry(self, error: PacelineError) -> BaseException:
        """What to raise for this error. From any thread."""
        if not self.stern:
            return error
        if self.first is None:
            self.first = error
            if self._pulse is not None:
                self._pulse.failed(error)
        return Fatal(self.first)

    def check(self) -> None:
        """Raises the first failure again, if there was one."""
        if self.first is not None:
            raise Fatal(self.first)
