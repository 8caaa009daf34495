"""Cancels work that all workers do together when one worker fails.

A failed worker answers the next collective of its peers, whichever it is, with "called off", so that no peer waits
forever. In shared memory each collective carries this answer in its call descriptor at no extra cost. Gloo and NCCL
collectives cannot carry the answer: within such work (`Group.guarded`) a small exchange in host memory precedes each of
them.
"""

from __future__ import annotations


class Regrouping(BaseException):
    """A worker is gone, and the others go on without it: what they did together is to be done again by those who are
    left (`Group.regroup`). Not an Exception, for the same reason."""


class CalledOff(BaseException):
    """A worker failed in the current joint work. Not an Exception: a handler in the model's code must not catch it."""
