"""Reports operations that some ranks have submitted and others have not, and ends them if that lasts too long.

A rank that took another branch, or that is busy, lets all others wait without a word. Rank 0 knows what each rank has
submitted, and says on standard error which ranks and tensors are missing.
"""

from __future__ import annotations

import sys
import time

from paceline.settings import HorovodSettings

MOST_NAMES = 20  # in a report, for each rank


class StallInspector:
    """Used by rank 0's background thread, which wakes every `every` seconds while something is pending."""

    def __init__(self, settings: HorovodSettings) -> None:
        self._report_after, self._end_after = settings.stall_check, settings.stall_shutdown
        asked = [seconds for seconds in (self._report_after, self._end_after) if seconds > 0]
        self.every = min([1.0, *(seconds / 4 for seconds in asked)]) if self._report_after > 0 else None
        self._since: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether it is time to `look` again."""
        return self.every is not None and time.monotonic() >= self._next

    def look(self, missing: dict[str, tuple[float, list[int]]]) -> str:
        """`missing`: seconds, and the ranks that have not submitted it, of each tensor. Returns why Horovod ends, or ""
        if it goes on."""
        now = time.monotonic()
        self._next = now + (self.every or 1.0) / 2
        self._since = {name: min(self._since.get(name, now), now - seconds) for name, (seconds, _) in missing.items()}
        self._reported = {name: at for name, at in self._reported.items() if name in missing}
        late = {name for name, since in self._since.items() if now - since >= self._report_after}
        if new := {name for name in late if now - self._reported.get(name, -self._report_after) >= self._report_after}:
            self._reported.update(dict.fromkeys(new, now))
            print(self._report({name: missing[name][1] for name in new}), file=sys.stderr, flush=True)
        if self._end_after > 0:
            lost = {name: missing[name][1] for name in late if now - self._since[name] >= self._end_after}
            if lost:
                return f"Tensors were stalled for more than {self._end_after:g} seconds.{_by_rank(lost)}"
        return ""

    def _report(self, absent: dict[str, list[int]]) -> str:
        return (
            "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are "
            f"waiting for remainder of ranks for more than {self._report_after:g} seconds. This may indicate that "
            "different ranks are trying to submit different tensors or that only subset of ranks is submitting "
            f"tensors, which will cause deadlock.{_by_rank(absent)}"
        )


def _by_rank(absent: dict[str, list[int]]) -> str:
    ranks = sorted({rank for missing in absent.values() for rank in missing})
    lines = ["\nMissing ranks:"]
    for rank in ranks:
        names = sorted(name for name, missing in absent.items() if rank in missing)
        more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        lines.append(f"{rank}: [{', '.join(names[:MOST_NAMES])}{more}]")
    return "\n".join(lines)
