"""The search of `tune` for the fastest set of mods, on any bench.

1. Measures the unmodified script (the baseline): twice from one seed, then from other seeds, for the loss guard. The
   first of these trials also says how the script is set up, and mods that cannot act in it are not tried.
2. Measures the candidates that gain nearly always all together, and leaves each out once if that gains, which shows
   what slows the others down. If the set fails or gains too little, nothing is lost but one trial.
3. Measures each other candidate on top of the best set, in the order of `standing.rank`, and adds it if it gains: some
   mods gain only after another one. A mod is kept only if pairs of trials, with and without it in turn, show a gain
   above the noise, or if one trial is decisive. A mod that the loss guard refuses is out.
4. Removes each kept mod once, if there is time, to see whether it is still needed.
5. Runs the printed command and the unmodified script in fresh processes: only what this last check confirms is
   reported (`last_check`).

The search ends within the budget. Once a mod has gained, it reserves time for the last check; before, it spends all of
the time on mods that were not tried. A gain that there is no time to repeat in trials goes to the last check as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import reduce

from paceline.mods.prospects import why_idle
from paceline.trials.core.interval import LEAST, mean
from paceline.trials.core.result import Measured, Status
from paceline.trials.tune import verdict as verdicts
from paceline.trials.tune.candidates import LATER, LONG_START, Candidate, draws, promise_of, together
from paceline.trials.tune.last_check import LastCheck
from paceline.trials.tune.loss_guard import Compared, Guard
from paceline.trials.tune.noise import Mods
from paceline.trials.tune.standing import (
    CandidateStanding,
    NothingToTune,
    failure,
    no_gain,
    problem,
    put_in_order,
    rank,
    refusal,
)
from paceline.trials.tune.trials import AS_IT_IS, Measures, NoTime, Trials
from paceline.trials.tune.verdict import Final, Problem, Reason, Row, Verdict

LONG = 1 / 8  # of the budget: a candidate whose first trial takes longer is tried only on top of the best set
MUCH = 1.3  # a mod with at least this gain is never removed: later mods do not make up for it
WORTH = 0.05  # smallest relative gain for which the batch is doubled again
SEEDS = 2  # other seeds that the baseline runs from
UNREPEATED = "not confirmed: the budget ended"
LEAST_TRIALS = 6  # fewest trials for a result: the baseline's, one candidate's, and the last check's


class Search:
    """Runs the search. `verdict` gives the results so far, also after an interrupt."""

    def __init__(
        self,
        bench: Measures,
        candidates: Sequence[Candidate],
        *,
        start: Mods = (),
        budget: float | None = None,
        enough: float | None = None,
        on_note: Callable[[str], None] = lambda text: None,
        on_kept: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.bench, self.start, self.budget = bench, start, budget
        self.on_note, self.on_kept = on_note, on_kept
        self.best: Mods = AS_IT_IS
        self.standings = {c.mod: CandidateStanding(c, Row(mod=c.mod)) for c in candidates}
        for order, mod in enumerate(start):
            asked = Candidate(mod=mod, order=order - len(start))
            self.standings.setdefault(mod, CandidateStanding(asked, Row(mod=mod)))
        self.guard: Guard | None = None
        self.final: Final | None = None
        self.problem, self.cut_short = "", False
        self.problem_code: Problem | None = None
        self.failed: Measured | None = None  # the failed trial of the baseline
        self.trials = Trials(bench, {mod: one.candidate.seconds for mod, one in self.standings.items()}, enough=enough)
        self.speeds = self.trials.speeds
        self.notes: list[str] = []
        self._tried: set[tuple[str, frozenset[str]]] = set()  # a candidate, and the set that it was tried on
        self._doubtful: list[CandidateStanding] = []  # gains on top of the best set that may be noise

    # -- the plan --------------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Runs the whole search. An interrupt is raised to the caller."""
        try:
            self._measure_baseline()
        except NothingToTune as error:
            self.problem, self.problem_code = str(error), error.code
            return
        try:
            self._begin()
            self._try_together()
            self._try_each_alone()
            self._grow()
        except NoTime:
            self.cut_short = True
        with contextlib.suppress(NoTime):
            self._prune()
        self._confirm_the_whole()

    def _measure_baseline(self) -> None:
        first = self._baseline("baseline.r1", facts=True)
        self._leave_out_what_cannot_act(first)
        # The first trial may include the import of torch, so the second one tells how long a trial takes.
        again = self._baseline("baseline.r2") if self.bench.budget.left > first.seconds else first
        if self.bench.budget.left < (LEAST_TRIALS - 2) * again.seconds:
            raise NothingToTune(
                Problem.BUDGET,
                f"the budget is too short: a trial of this script takes {again.seconds:.1f} s, and a search needs at "
                f"least {LEAST_TRIALS} trials",
            )
        put_in_order(self.standings.values(), again.step)
        losses = [trial.losses for trial in (first, again)]
        if trouble := Guard(losses, []).trouble:
            raise NothingToTune(Problem.LOSS, trouble)
        others = []
        for shift in range(1, SEEDS + 1):
            if shift == 1 or self.bench.budget.left > 12 * again.seconds:
                others.append(self._baseline(f"baseline.seed{shift}", seed_shift=shift).losses)
        self.guard = Guard(losses, others)
        if trouble := self.guard.trouble:
            raise NothingToTune(Problem.LOSS, trouble)
        for note in self.guard.standard.notes:
            self._note(note)

    def _leave_out_what_cannot_act(self, baseline: Measured) -> None:
        for standing in self.standings.values():
            mod = standing.candidate.mod
            if baseline.facts is not None and mod not in self.start and (why := why_idle(mod, baseline.facts)):
                standing.row.settle(Reason.IDLE, f"not in force: {why}")
                standing.out = True

    def _baseline(self, name: str, **changes: int) -> Measured:
        measured = self.trials.baseline(name, **changes)
        if not measured.ok:
            self.failed = measured
            raise NothingToTune(problem(measured), measured.message)
        return measured

    def _begin(self) -> None:
        """Starts from the user's mods, unless a trial with them fails or the loss guard refuses it."""
        if not self.start:
            return
        measured = self.trials.measure(self.start, best=AS_IT_IS)
        compared = self._compared(self.start, measured)
        for mod in self.start:
            row = self.standings[mod].row
            if measured.ok and compared.held:
                row.settle(Reason.ASKED_FOR, "asked for")
                row.loss_difference = compared.distance
                continue
            self.standings[mod].out = True
            if measured.ok:
                row.settle(Reason.REFUSED, refusal(compared))
            else:
                row.settle(Reason.FAILED, failure(measured))
        if self.standings[self.start[0]].row.kept:
            self.best = self.start

    def _try_together(self) -> None:
        """Keeps the candidates that gain nearly always, if one trial of all of them is decisive; then leaves each of
        them out once, which shows its own gain."""
        likely = [one for one in self._open() if one.candidate.likely and self._is_quick(one)]
        whole = reduce(together, (one.candidate.mod for one in likely), self.best)
        if len(likely) < 2:
            return
        measured = self.trials.measure(whole, best=self._at_stake())
        kept = tuple(mod for mod in whole if mod not in measured.idle)
        for one in likely:
            if one.candidate.mod in measured.idle:
                self._settle_idle(one, measured)
        if not measured.ok or not (compared := self._compared(kept, measured)).held:
            return
        if kept != whole:
            self.speeds.add_again(kept, measured)
        if len(kept) < 2 or self.trials.seen(self.best, kept) is None:
            return
        old, self.best = self.best, kept
        for mod in kept:
            row = self.standings[mod].row
            if not row.kept:
                row.settle(Reason.GAINS, "")
                row.before, row.after, row.on = self.speeds.speed(old), self.speeds.speed(kept), list(old)
                row.loss_difference = compared.distance
        self.on_kept(f"{' '.join(kept)}: {self.speeds.speed(kept) / self.speeds.speed(old):.2f}×")
        for mod in kept:
            if mod not in self.start:
                self._leave_out(mod)

    def _leave_out(self, mod: str) -> None:
        """Measures the best set without this mod, and drops the mod if the rest is as fast."""
        less = tuple(other for other in self.best if other != mod)
        measured = self.trials.measure(less, best=self.best)
        row = self.standings[mod].row
        if not measured.ok:  # it needs the mod
            return
        row.on, latest, gain = list(less), 2, self.speeds.speed(self.best) / self.speeds.speed(less)
        if 1 + self._worth_confirming() < gain <= 1 + self.speeds.margin(1):
            ratios = self.trials.pairs(less, self.best, best=self.best, most=2)
            latest, gain = (len(ratios), mean(ratios)) if ratios else (latest, gain)
        row.compare(self.speeds.speed(self.best, latest), gain)
        # Fewer mods are better than more. But a mod may gain only on top of one that is still to be tried: `_prune`.
        if gain <= (1 - self.speeds.margin(1) if self._expects_more() else 1 + self._worth_confirming()):
            row.settle(Reason.REDUNDANT, "no gain on top of the other kept mods")
            self.standings[mod].fruitless += 1
            self._tried.add((mod, frozenset(less)))
            self.best = less

    def _expects_more(self) -> bool:
        """Whether the next candidate makes the device's work much shorter or longer: a compiler, or a larger batch."""
        following = min(self._open(), key=self._rank, default=None)
        return following is not None and (following.candidate.seconds >= LONG_START or following.candidate.doubles)

    def _is_quick(self, standing: CandidateStanding) -> bool:
        return self.budget is None or self.trials.cost(self._with(standing)) <= LONG * self.budget

    def _try_each_alone(self) -> None:
        for standing in sorted(self._open(), key=lambda one: one.candidate.order):
            candidate = standing.candidate
            if self.best and candidate.seconds >= LONG_START:
                return
            worth = candidate.order < LATER and not candidate.doubles and not standing.fruitless
            if worth and self._is_quick(standing) and not self._replaces(standing):
                self._screen(standing)

    def _grow(self) -> None:
        while standing := self._next():
            on = frozenset(self.best)
            again = (standing.candidate.mod, on) in self._tried
            self._tried.add((standing.candidate.mod, on))
            if again:
                self._doubtful.remove(standing)
                self._confirm(standing)
            elif self._screen(standing):
                standing = self._climb(standing)
                if (standing.gain or 1.0) > 1 + max(self.speeds.margin(1), WORTH * standing.candidate.doubles):
                    self._confirm(standing)
                else:  # confirming such a small gain takes many pairs: only if no better candidate is left
                    self._doubtful.append(standing)

    def _next(self) -> CandidateStanding | None:
        """The next candidate to try on top of the best set, or to try again; None: no candidate is left."""
        on = frozenset(self.best)
        left = [one for one in self._open() if (one.candidate.mod, on) not in self._tried]
        if left:
            return min(left, key=self._rank)
        return max(self._doubtful, key=lambda one: one.gain or 1.0, default=None)

    def _rank(self, standing: CandidateStanding) -> tuple[int, float, int]:
        return rank(standing, self.speeds.margin(1), replaces=self._replaces(standing))

    def _replaces(self, standing: CandidateStanding) -> bool:
        """Whether the candidate would take the place of a mod that gained."""
        gone = set(self.best) - set(self._with(standing))
        return any((self.standings[mod].row.gain or 1.0) > 1 + self.speeds.margin(1) for mod in gone)

    # -- a candidate -----------------------------------------------------------------------------------------------

    def _screen(self, standing: CandidateStanding) -> bool:
        """Runs one trial on top of the best set, unless there is one. Returns whether the gain is worth confirming."""
        new = self._with(standing)
        known = self.speeds.of(new)
        if not known:
            self.trials.refresh(self.best, against=new)
        measured = known[-1] if known else self.trials.measure(new, best=self._at_stake())
        row, before = standing.row, self.speeds.speed(self.best)
        row.on = list(self.best)
        if not measured.ok:
            row.before, row.after, row.gain = before, None, None
            row.settle(Reason.FAILED, failure(measured))
            if self._fails_with_the_newest(standing, measured):
                standing.without = self.best[-1]
                return self._screen(standing)
            standing.out = measured.status is not Status.MEMORY  # another set may leave enough memory
            return False
        if standing.candidate.mod in measured.idle:
            self._settle_idle(standing, measured)
            return False
        compared = self._compared(new, measured)
        gain = self.speeds.speed(new) / before
        row.compare(self.speeds.speed(new), gain)
        row.loss_difference = compared.distance
        if not compared.held:
            row.settle(Reason.REFUSED, refusal(compared))
            standing.out = True
            gentler = standing.candidate.gentler()
            if gentler is not None:  # counts as tried once, because it is exactly as fast as this one
                self.standings.setdefault(gentler.mod, CandidateStanding(gentler, Row(mod=gentler.mod), fruitless=1))
            return False
        standing.gain = gain
        if gain <= 1 + self._worth_confirming():
            standing.fruitless += 1
            row.settle(Reason.NO_GAIN, no_gain(gain, self.speeds.margin(1)))
            return False
        row.settle(Reason.NOT_CONFIRMED, UNREPEATED)
        return True

    def _fails_with_the_newest(self, standing: CandidateStanding, measured: Measured) -> bool:
        """Whether a trial failed that is worth one more without the newest mod of the best set: both parts may be
        fine, and only fail together."""
        alone = self.speeds.of((standing.candidate.mod,))
        worth = measured.status is Status.FAILED and bool(self.best) and all(trial.ok for trial in alone)
        return worth and not standing.without and self.best[-1] not in self.start

    def _settle_idle(self, standing: CandidateStanding, measured: Measured) -> None:
        standing.row.settle(Reason.IDLE, measured.idle[standing.candidate.mod].partition(" is ")[2])
        standing.fruitless += 1
        standing.out = not standing.candidate.needs_workers  # more workers may be kept later

    def _climb(self, standing: CandidateStanding) -> CandidateStanding:
        """Doubles `batch=x2` as long as that gains. If the guard refuses a batch, tries its gentler learning rate."""
        while standing.candidate.doubles:
            doubled = standing.candidate.doubled()
            following = CandidateStanding(doubled, Row(mod=doubled.mod))
            self.standings[doubled.mod] = following
            reached = standing.gain or 1.0
            least = max(WORTH, self.speeds.margin(1))
            fine = self._screen(following)
            gentler = following.candidate.gentler()
            if gentler and gentler.mod in self.standings and (following.row.gain or 0.0) >= reached * (1 + least):
                following = self.standings[gentler.mod]
                fine = self._screen(following)
            if not fine or (following.gain or 0.0) < reached * (1 + least):
                if following.row.code is Reason.NOT_CONFIRMED:
                    following.gain = (following.gain or reached) / reached  # relative to the batch about to be kept
                    following.row.settle(Reason.NO_GAIN, no_gain(following.gain, least))
                    following.fruitless = 1
                break
            standing.row.settle(Reason.OUTDONE, f"{following.row.mod} gains more")
            standing.out = True
            standing = following
        return standing

    def _confirm(self, standing: CandidateStanding) -> None:
        """Measures the best set and the candidate in turn, until it is clear which is faster."""
        old, new = self.best, self._with(standing)
        ratios, row = self.trials.pairs(old, new, best=old), standing.row
        if not ratios:
            row.settle(Reason.FAILED, "failed in a repeated trial")
            standing.out = True
            return
        gain, margin = mean(ratios), max(self.speeds.margin(len(ratios)), WORTH * standing.candidate.doubles)
        row.compare(self.speeds.speed(new, len(ratios)), gain)
        standing.gain = gain
        if gain <= 1 + margin:
            standing.fruitless += 1
            row.settle(Reason.NO_GAIN, no_gain(gain, margin))
            return
        row.settle(Reason.GAINS, "")
        for mod in set(old) - set(new):
            replaced = self.standings[mod]
            replaced.row.settle(Reason.OUTDONE, f"{row.mod} gains more")
            replaced.out = replaced.candidate.doubles  # a larger batch gains more
        self.best = new
        self._doubtful.clear()  # they are tried again on top of the new set
        self.on_kept(f"{row.mod}: {gain:.2f}×")

    def _prune(self) -> None:
        """Removes each kept mod once, and drops it if the rest is as fast without it. Skips mods with a large gain, to
        save time for the last check, and one that was confirmed on top of this very set."""
        gains = {mod: self.standings[mod].row.gain or 1.0 for mod in self.best}
        for mod in sorted((mod for mod, gain in gains.items() if gain < MUCH), key=lambda mod: gains[mod]):
            row, less = self.standings[mod].row, tuple(other for other in self.best if other != mod)
            if not less or (set(row.on) == set(less) and gains[mod] > 1 + self._worth_confirming()):
                continue
            ratios = self.trials.pairs(less, self.best, best=self.best, most=2)
            if ratios and mean(ratios) < 1 + max(LEAST, self._worth_confirming()):
                row.settle(Reason.REDUNDANT, "no gain on top of the other kept mods")
                row.compare(self.speeds.speed(self.best, len(ratios)), mean(ratios))
                self.best = less

    def _confirm_the_whole(self) -> None:
        """The last check, in fresh processes. Only what they confirm is reported."""
        best = self._at_stake()
        gains = {mod: self.standings[mod].row.gain or 1.0 for mod in best}
        checked = LastCheck(self.trials, gains, lambda mods, last: self._compared(mods, last).distance).carry_out(best)
        for mod in checked.mods:
            if checked.final and not self.standings[mod].row.kept:
                self.standings[mod].row.settle(Reason.GAINS, "")
        for mod, why in checked.dropped.items():
            code = Reason.NOT_CONFIRMED if why.startswith("not confirmed") else Reason.NOT_DELIVERED
            self.standings[mod].row.settle(code, why)
        for note in checked.notes:
            self._note(note)
        plain = self.speeds.speed(AS_IT_IS)
        nothing = Final(mods=[], samples_per_s=plain, gain=1.0, gain_low=1.0, gain_high=1.0, pairs=0)
        self.best, self.final = checked.mods, checked.final or nothing

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _open(self) -> list[CandidateStanding]:
        return [one for mod, one in self.standings.items() if not one.out and mod not in self.best]

    def _at_stake(self) -> Mods:
        """The set that the last check will be of: the best one or, while nothing is kept, the most promising one."""
        return self.best or max(self._promising(), key=self.speeds.speed, default=AS_IT_IS)

    def _promising(self) -> list[Mods]:
        """The sets of a mod alone that gained more than the noise, which was not repeated."""
        least = (1 + self.speeds.margin(1)) * self.speeds.speed(AS_IT_IS)
        doubted = [(mod,) for mod, one in self.standings.items() if one.row.code is Reason.NOT_CONFIRMED]
        return [mods for mods in doubted if self.speeds.speed(mods) > least]

    def _worth_confirming(self) -> float:
        """The smallest gain of one trial that is worth more trials."""
        return max(LEAST / 2, self.speeds.noise / 2)

    def _with(self, standing: CandidateStanding) -> Mods:
        return together([mod for mod in self.best if mod != standing.without], standing.candidate.mod)

    def _compared(self, mods: Mods, measured: Measured) -> Compared:
        assert self.guard is not None
        return self.guard.compare(measured.losses, promise_of(mods), draws=draws(mods))

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note(text)

    def verdict(self, *, interrupted: bool = False) -> Verdict:
        """The verdict on the search so far."""
        rows = sorted(self.standings.values(), key=lambda one: (not one.row.kept, -(one.row.gain or 0.0)))
        margin = self.speeds.margin(1)
        for standing in rows:
            row = standing.row
            if row.code is Reason.NOT_TRIED and self.cut_short:
                row.reason = "not tried: the budget ended"
            if row.reason == UNREPEATED and self.final and (row.gain or 0.0) <= 1 + margin:
                row.settle(Reason.NO_GAIN, no_gain(row.gain or 1.0, margin))  # one trial shows no more than this
        return Verdict(
            baseline=verdicts.speed(self.speeds.of(AS_IT_IS)),
            mods=[standing.row for standing in rows],
            final=None if interrupted else self.final,
            noise=self.speeds.noise,
            guard=self.guard.standard if self.guard else None,
            notes=self.notes,
            budget=self.budget,
            spent=self.bench.budget.spent,
            trials=self.speeds.made + self.trials.alone.made,
            # What else the budget has ended, repeats and sets of several mods, leaves no mod untried.
            cut_short=self.cut_short and any(one.row.code is Reason.NOT_TRIED for one in rows),
            problem=self.problem,
            problem_code=self.problem_code,
            interrupted=interrupted,
        )
