"""What a person should try after a run that mostly waited: one line, and what to type.

Only for waits that nobody wants: for input, for communication, for one slow worker. The rules of `paceline profile` see
more, and predict gains; this looks at the summary of a run only, so that every run can end with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.trials.core.summary import Summary
from paceline.units import percent

SHARE = 0.3  # of a step: with less waiting, the wait may be of no interest to a person
FEW = 5  # counted steps; with fewer, the shares say little
PROCESSES = 4  # loader processes of each of several workers; work that waits needs more of them than there are cores


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAdvice:
    """What was found, a sentence; the purpose of the command, "To …"; and the command: the `verb` with these `options`
    before those of the run."""

    found: str
    purpose: str
    verb: str
    options: tuple[str, ...] = ()


def advise(summary: Summary, *, hosts: int = 1, compression: str = "none", own: bool = True) -> RunAdvice | None:
    """The advice on the largest wait; None if there is none, or if the run failed. `own`: Paceline splits the script's
    work, and mods can be applied."""
    total = summary.step.get("total", 0.0)
    if summary.exit_code or summary.counted < FEW or not total:
        return None
    data, communication = summary.step["data"] / total, summary.step["communication"] / total
    if max(data, communication) < SHARE:
        return None
    mods = {mod.partition("=")[0] for mod in summary.mods}
    if data >= communication:
        return _on_input(data, summary.workers, mods, own=own)
    late = summary.slowest
    if late is not None and late.slow and late.behind >= communication * total / 2:
        return RunAdvice(
            found=f"{percent(communication, digits=0)} of a step is waiting for rank {late.rank}, which is late.",
            purpose="To see why",
            verb="profile",
        )
    return _on_communication(communication, summary.workers, hosts=hosts, compression=compression)


def _on_input(share: float, workers: int, mods: set[str], *, own: bool) -> RunAdvice:
    found = f"{percent(share, digits=0)} of a step is waiting for input."
    if not own or mods & {"loader", "resident"}:
        return RunAdvice(found=found, purpose="To see what is slow", verb="profile")
    mod = "loader=fast" if workers == 1 else f"loader={PROCESSES}"
    return RunAdvice(found=found, purpose="To load batches ahead", verb="run", options=("--mod", mod))


def _on_communication(share: float, workers: int, *, hosts: int, compression: str) -> RunAdvice:
    found = f"{percent(share, digits=0)} of a step is communication."
    if hosts > 1 and compression == "none":
        purpose = "To send bf16 (results change slightly)"
        return RunAdvice(found=found, purpose=purpose, verb="run", options=("--compression", "bf16"))
    numbers = ",".join(map(str, _up_to(workers)))
    purpose = "To see if fewer workers are as fast"
    return RunAdvice(found=found, purpose=purpose, verb="scale", options=("-n", numbers))


def _up_to(workers: int) -> Sequence[int]:
    """1, 2, 4, … and the number itself."""
    return [*(2**k for k in range(workers.bit_length()) if 2**k < workers), workers]
