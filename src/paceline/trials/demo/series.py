"""The demo's measurements: the script plain, on one worker and on all workers; then a short search for mods.

Both parts write a record like that of their verb (`scale`, `tune`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.errors import PacelineError
from paceline.launch import Event, Output, Zygote
from paceline.launch.interrupts import Interrupted
from paceline.launch.local import OtherHosts
from paceline.record.private import write_file
from paceline.settings import RunSettings, asked_threads
from paceline.topology import Host
from paceline.trials.core.bench import Bench, Budget
from paceline.trials.demo.plain import run_plain
from paceline.trials.demo.printed import Printed, compare_printed
from paceline.trials.scale.series import Result, Trial, carry_out, plan
from paceline.trials.tune.candidates import candidates
from paceline.trials.tune.search import Search

TUNE = 60.0  # most seconds of the search
LEAST_TUNE = 15.0  # seconds: a shorter search finds nothing
RESERVE = 5.0  # seconds of the budget kept for a trial that ends late, and for writing
ROUNDS = 3  # the fewest for an interval
ENOUGH = 0.5  # seconds of steady steps after which a trial ends
SLOW_TO_START = ("compile",)  # mods left out, because their first steps would take half of the search's time


def run_both(
    settings: RunSettings,
    *,
    zygote: Callable[[], Zygote | OtherHosts],
    record: Path,
    budget: Budget,
    on_line: Callable[[str], None],
    on_event: Callable[[Event], None],
    on_start: Callable[[Trial], None],
    on_result: Callable[[Result], None],
) -> Printed:
    """Runs the script with plain Python, on one worker and on all workers, and compares the output of the first and the
    last. The first round ignores the budget; others run if the budget leaves time for them and for a short search.
    Raises Interrupted, and PacelineError if a run fails."""
    plain = run_plain(Path(settings.script), on_line=on_line)
    write_file(record / "plain.txt", plain.encode())
    said = bytearray()  # output of the run on all workers, in the first round
    compared = False  # whether the run in progress is that one
    begun = [budget.spent]  # of each round

    def starts(trial: Trial) -> None:
        nonlocal compared
        on_start(trial)
        compared = trial.workers == settings.workers and trial.round == 1

    def happens(event: Event) -> None:
        on_event(event)
        if compared and isinstance(event, Output) and event.stream == "stdout":
            said.extend(event.data)

    def affords() -> bool:
        begun.append(budget.spent)
        return budget.affords(begun[-1] - begun[-2] + LEAST_TUNE + RESERVE)

    def ends(result: Result) -> None:
        on_result(result)
        if result.interrupted:
            raise Interrupted(result.exit_code)
        if result.failure:
            raise PacelineError(result.failure, advice="To check this machine, type: paceline doctor")

    carry_out(
        plan(settings, (1, settings.workers), rounds=ROUNDS, mode="strong"),
        zygote=zygote(),
        record=record,
        on_event=happens,
        on_start=starts,
        on_result=ends,
        affords=affords,
    )
    return compare_printed(plain, said.decode(errors="replace"))


def search_for(bench: Bench, host: Host, *, tell: Callable[[str], None]) -> Search:
    """A short `tune` search, not yet started."""
    tried = candidates(
        gpus=len(host.gpus),
        cores=host.usable_cores,
        workers=bench.settings.workers,
        threads=asked_threads() or host.usable_cores,
        without=SLOW_TO_START,
    )
    return Search(bench, tried, budget=bench.budget.seconds, enough=bench.settings.enough, on_note=tell, on_kept=tell)


def ran_out_of_time(search: Search, budget: Budget) -> bool:
    """Whether a failed search only lacked time, so that not even the unmodified script was measured."""
    return search.guard is None and (search.failed is None or budget.over)
