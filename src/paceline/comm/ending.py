"""Failures that end the run even if the script catches exceptions.

For a lost peer, diverged workers and a refused script, Paceline raises `Fatal`, a BaseException, which `except
Exception` does not catch. The worker keeps the first failure and reports it to the launcher at once. If the script
catches `Fatal` all the same (a bare `except:`), the next seam or collective raises the failure again, and so does the
end of the script.
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
    """The first fatal error of one worker. `stern` is True under `paceline run`: errors are raised as `Fatal`. With the
    Python API `stern` is False: errors stay ordinary exceptions."""

    def __init__(self, pulse: Pulse | None = None) -> None:
        self.stern = False
        self.first: PacelineError | None = None
        self._pulse = pulse

    def carry(self, error: PacelineError) -> BaseException:
        """Returns the exception to raise for this error. Any thread may call this method."""
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
