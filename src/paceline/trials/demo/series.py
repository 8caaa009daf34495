"""The demo's measurements: the script plain, on one worker and on all workers; then a short search for mods.

Each leaves a record like the verb that it stands for (`scale`, `tune`). The command line shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.errors import PacelineError
from paceline.launch import Event, Output, Zygote
from paceline.launch.interrupts import Interrupted
from paceline.record.private import write_file
from paceline.settings import RunSettings, asked_threads
from paceline.topology import Host
from paceline.trials.core.bench import Bench, Budget
from paceline.trials.demo.plain import run_plain
from paceline.trials.demo.printed import Printed, compare_printed
from paceline.trials.scale.series import Result, Trial, carry_out, plan
from paceline.trials.tune.candidates import candidates
from paceline.trials.tune.search import Search

TUNE = 60.0  # seconds
LEAST_TUNE = 15.0  # seconds: a shorter search finds nothing
RESERVE = 5.0  # seconds of the budget for a trial that ends late, and for writing
ROUNDS = 2  # at most
ENOUGH = 0.5  # seconds of settled steps that make a trial
SLOW_TO_START = ("compile",)  # mods whose first steps take half of the time that there is


def run_both(
    settings: RunSettings,
    *,
    zygote: Callable[[], Zygote],
    record: Path,
    budget: Budget,
    on_line: Callable[[str], None],
    on_event: Callable[[Event], None],
    on_start: Callable[[Trial], None],
    on_result: Callable[[Result], None],
) -> Printed:
    """Runs the script by plain Python, then on one worker and on all of them, and compares what the first and the last
    printed. This takes as long as it does; there is another round where the budget has time for it and for the search.
    Raises Interrupted, and PacelineError where a run fails."""
    plain = run_plain(Path(settings.script), on_line=on_line)
    write_file(record / "plain.txt", plain.encode())
    said = bytearray()  # by all workers, in the first round

    def starts(trial: Trial) -> None:
        on_start(trial)
        if trial.workers == settings.workers and trial.round == 1:
            said.clear()

    def happens(event: Event) -> None:
        on_event(event)
        if isinstance(event, Output) and event.stream == "stdout":
            said.extend(event.data)

    def ends(result: Result) -> None:
        on_result(result)
        if result.interrupted:
            raise Interrupted(result.exit_code)
        if result.failure:
            raise PacelineError(result.failure, advice="See what is wrong here: paceline doctor")

    trials = plan(settings, (1, settings.workers), rounds=ROUNDS, mode="strong")
    printed = Printed(same=False, numbers=0, max_difference=0.0, tolerance=0.0, lines=[])
    for number in range(1, ROUNDS + 1):
        begun = budget.spent
        round_ = [trial for trial in trials if trial.round == number]
        carry_out(round_, zygote=zygote(), record=record, on_event=happens, on_start=starts, on_result=ends)
        if number == 1:
            printed = compare_printed(plain, said.decode(errors="replace"))
        if not budget.affords(budget.spent - begun + TUNE + RESERVE):
            break
    return printed


def search_for(bench: Bench, host: Host, *, tell: Callable[[str], None]) -> Search:
    """The search of a short `tune`, not yet carried out."""
    tried = candidates(
        gpus=len(host.gpus),
        cores=host.usable_cores,
        workers=bench.settings.workers,
        threads=asked_threads() or host.usable_cores,
        without=SLOW_TO_START,
    )
    return Search(bench, tried, budget=bench.budget.seconds, on_note=tell, on_kept=tell)


def ran_out_of_time(search: Search, budget: Budget) -> bool:
    """Whether a search that has a problem only lacked time: not even the script as it is was measured."""
    return search.guard is None and (search.failed is None or budget.over)
