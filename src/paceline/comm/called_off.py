"""Work that all workers do together, and that any one of them may fail in.

A worker that fails answers its peers' next collective with that, whatever collective it is: no peer is left waiting.
Between workers of one host each collective carries the answer anyway, in the line that says what was called. Over Gloo
and on GPUs nothing can be carried: there, within such work (`Group.guarded`), a small exchange between the hosts'
processes goes before each collective.
"""

from __future__ import annotations


class CalledOff(BaseException):
    """A worker has failed in the work that is under way. Not an Exception: a model's own handler must not catch it."""
