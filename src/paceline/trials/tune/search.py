"""`tune`: the search for the fastest set of mods, on any bench that measures.

The script as it is first: twice from one seed, then from others, for the guard. Then each candidate alone, in order of
promise. Then the best is put on, and what is left is tried again on top of it, since many a mod only gains after
another has gone before. Nothing is kept before pairs of trials, best and candidate in turn, show a gain above the
noise, or a trial leaves no doubt; what the guard refuses is out. At the end each kept mod is taken away once, and the
whole is compared with the script as it is once more: only what that confirms is claimed. All within the budget, of
which the last check's share is set aside.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

from paceline.trials.core.result import Measured, Status
from paceline.trials.tune import verdict as verdicts
from paceline.trials.tune.candidates import LONG_START, Candidate, draws, promise_of, together
from paceline.trials.tune.loss_guard import Compared, Guard
from paceline.trials.tune.noise import LEAST, Mods, mean
from paceline.trials.tune.trials import AS_IT_IS, Measures, NoTime, Trials
from paceline.trials.tune.verdict import Final, Problem, Reason, Row, Verdict

LONG = 1 / 8  # of the budget: a first trial that would take longer than this is not made alone, but on top of the best
MUCH = 1.3  # a gain that the mods after it do not make up for
WORTH = 0.05  # that twice the batch must gain
HELD_UP = 0.75  # of its speed before, next to the tuned one's: a script that something held up in the last check
SEEDS = 2  # other ones that the baseline is run from
LEAST_TRIALS = 8  # that say something: the baseline's, one candidate's, and the last check's


class NothingToTune(Exception):
    """The baseline cannot be measured, or is not worth comparing with. Its text says why, for a person."""

    def __init__(self, code: Problem, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclasses.dataclass(slots=True, eq=False)
class CandidateStanding:
    """What is known of a candidate while the search goes on."""

    candidate: Candidate
    row: Row
    gain: float | None = None  # on the last set that it was tried on
    fruitless: int = 0  # how often it was tried and showed nothing
    out: bool = False  # refused, unsupported, or failed


class Search:
    """Carries the search out. Whatever ends it, `verdict` says what was found until then."""

    def __init__(
        self,
        bench: Measures,
        candidates: Sequence[Candidate],
        *,
        start: Mods = (),
        budget: float | None = None,
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
        self.failed: Measured | None = None  # the baseline's trial that could not be measured
        self.trials = Trials(bench, {mod: one.candidate.seconds for mod, one in self.standings.items()})
        self.speeds = self.trials.speeds
        self.notes: list[str] = []
        self._tried: set[tuple[str, frozenset[str]]] = set()  # a candidate, and what it was tried on
        self._doubtful: list[CandidateStanding] = []  # on the best: may gain, may be noise

    # -- the plan --------------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """All of it. An interrupt comes through."""
        try:
            self._measure_baseline()
        except NothingToTune as error:
            self.problem, self.problem_code = str(error), error.code
            return
        try:
            self._begin()
            self._try_each_alone()
            self._grow()
        except NoTime:
            self.cut_short = True
        with contextlib.suppress(NoTime):
            self._prune()
        self._confirm_the_whole()

    def _measure_baseline(self) -> None:
        first = self._baseline("baseline.r1")
        # The first one may have waited for torch to be imported: what a trial costs is known after the second.
        again = self._baseline("baseline.r2") if self.bench.budget.left > first.seconds else first
        if self.bench.budget.left < (LEAST_TRIALS - 2) * again.seconds:
            raise NothingToTune(
                Problem.BUDGET,
                f"the budget is too short: a trial of this script takes {again.seconds:.1f} s, and {LEAST_TRIALS} of "
                "them are the least that say something",
            )
        losses = [trial.losses for trial in (first, again)]
        self.guard = Guard(losses, [])
        if trouble := self.guard.trouble:
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

    def _baseline(self, name: str, **changes: int) -> Measured:
        measured = self.trials.baseline(name, **changes)
        if not measured.ok:
            self.failed = measured
            raise NothingToTune(_problem(measured), measured.message)
        return measured

    def _begin(self) -> None:
        """With the mods that were asked for, where they hold."""
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
                row.settle(Reason.REFUSED, _refusal(compared))
            else:
                row.settle(Reason.FAILED, _failure(measured))
        if self.standings[self.start[0]].row.kept:
            self.best = self.start

    def _try_each_alone(self) -> None:
        for standing in sorted(self._open(), key=lambda one: one.candidate.order):
            long = self.budget is not None and self.trials.cost(self._with(standing)) > LONG * self.budget
            if not long and not standing.candidate.doubles:
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
                else:  # pairs that show so little are many: later, if nothing better comes
                    self._doubtful.append(standing)

    def _next(self) -> CandidateStanding | None:
        """The next to try on top of the best, or to try once more; None: nothing is left."""
        on = frozenset(self.best)
        left = [one for one in self._open() if (one.candidate.mod, on) not in self._tried]
        if left:
            return min(left, key=self._rank)
        return max(self._doubtful, key=lambda one: one.gain or 1.0, default=None)

    def _rank(self, standing: CandidateStanding) -> tuple[int, float, int]:
        """What showed a gain comes first, then what was not tried yet, then the others by their promise; what was tried
        twice in vain, last. What takes long to start makes every later trial long, and waits for those that promise
        more even if it gained."""
        candidate, gain, quick = standing.candidate, standing.gain or 1.0, standing.candidate.seconds < LONG_START
        if quick and gain > 1 + self.speeds.margin(1):
            return (0, -gain, candidate.order)
        if quick and standing.gain is None and not standing.fruitless:
            return (1, 0.0, candidate.order)
        return (2 if standing.fruitless < 2 else 3, 0.0, candidate.order)

    # -- a candidate -----------------------------------------------------------------------------------------------

    def _screen(self, standing: CandidateStanding) -> bool:
        """One trial on top of the best, unless there is one. Says whether it is worth a confirmation."""
        new = self._with(standing)
        known = self.speeds.of(new)
        if not known:
            self.trials.refresh(self.best)
        measured = known[-1] if known else self.trials.measure(new, best=self.best)
        row, before = standing.row, self.speeds.speed(self.best)
        row.on = list(self.best)
        if not measured.ok:
            row.before, row.after, row.gain = before, None, None
            row.settle(Reason.FAILED, _failure(measured))
            standing.out = measured.status is not Status.MEMORY  # which another set may have more of
            return False
        compared = self._compared(new, measured)
        gain = self.speeds.speed(new) / before
        row.before, row.after, row.gain, row.loss_difference = before, self.speeds.speed(new), gain, compared.distance
        if not compared.held:
            row.settle(Reason.REFUSED, _refusal(compared))
            standing.out = True
            gentler = standing.candidate.gentler()
            if gentler is not None:  # as if it had been tried here: it is as fast as this one
                self.standings.setdefault(gentler.mod, CandidateStanding(gentler, Row(mod=gentler.mod), fruitless=1))
            return False
        standing.gain = gain
        if gain <= 1 + max(LEAST / 2, self.speeds.noise / 2):
            standing.fruitless += 1
            row.settle(Reason.NO_GAIN, _no_gain(gain, self.speeds.margin(1)))
            return False
        row.settle(Reason.NOT_CONFIRMED, "not confirmed: the budget was over")
        return True

    def _climb(self, standing: CandidateStanding) -> CandidateStanding:
        """From `batch=x2` upward, as long as twice as much gains; by the gentler rule where the other is refused."""
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
                    following.gain = (following.gain or reached) / reached  # on what is about to be put on
                    following.row.settle(Reason.NO_GAIN, _no_gain(following.gain, least))
                    following.fruitless = 1
                break
            standing.row.settle(Reason.OUTDONE, f"{following.row.mod} gains more")
            standing.out = True
            standing = following
        return standing

    def _confirm(self, standing: CandidateStanding) -> None:
        """Best and candidate in turn, until it is clear which is faster."""
        old, new = self.best, self._with(standing)
        ratios, row = self.trials.pairs(old, new, best=old), standing.row
        if not ratios:
            row.settle(Reason.FAILED, "failed when it was repeated")
            standing.out = True
            return
        gain, margin = mean(ratios), max(self.speeds.margin(len(ratios)), WORTH * standing.candidate.doubles)
        row.before, row.after, row.gain, standing.gain = self.speeds.speed(old), self.speeds.speed(new), gain, gain
        if gain <= 1 + margin:
            standing.fruitless += 1
            row.settle(Reason.NO_GAIN, _no_gain(gain, margin))
            return
        row.settle(Reason.GAINS, "")
        for mod in set(old) - set(new):
            replaced = self.standings[mod]
            replaced.row.settle(Reason.OUTDONE, f"{row.mod} gains more")
            replaced.out = replaced.candidate.doubles  # a smaller batch than one that is worth it
        self.best = new
        self._doubtful.clear()  # those are tried again, on this one
        self.on_kept(f"{row.mod}: {gain:.2f}×")

    def _prune(self) -> None:
        """Takes each kept mod away once: one that the others make up for is not worth its lines. Not those that gained
        much: time for them is better spent on the last check."""
        gains = {mod: self.standings[mod].row.gain or 1.0 for mod in self.best[:-1]}
        for mod in sorted((mod for mod, gain in gains.items() if gain < MUCH), key=lambda mod: gains[mod]):
            if len(self.best) < 2:
                return
            less = tuple(other for other in self.best if other != mod)
            ratios = self.trials.pairs(less, self.best, best=self.best, most=2)
            if ratios and mean(ratios) < 1 + LEAST / 2:
                row = self.standings[mod].row
                row.settle(Reason.REDUNDANT, "nothing is lost without it, next to the others")
                row.gain, row.before, row.after = mean(ratios), self.speeds.speed(less), self.speeds.speed(self.best)
                self.best = less

    def _confirm_the_whole(self) -> None:
        """Against the script as it is. What is not faster for sure is not claimed."""
        if not self.best:
            plain = self.speeds.speed(AS_IT_IS)
            self.final = Final(mods=[], samples_per_s=plain, gain=1.0, gain_low=1.0, gain_high=1.0, pairs=0)
            return
        plain, tuned = self.speeds.speed(AS_IT_IS), self.speeds.speed(self.best)
        try:
            ratios = self.trials.pairs(AS_IT_IS, self.best, best=self.best, last=True)
        except NoTime:
            ratios = []
        gain = mean(ratios) if ratios else 1.0
        if gain <= 1 + self.speeds.margin(max(1, len(ratios)), last=True):
            told = f"{gain:.2f}×" if ratios else "no time"
            for mod in self.best:
                self.standings[mod].row.settle(Reason.NOT_CONFIRMED, f"not confirmed by the last check ({told})")
            self.best = AS_IT_IS
            self._confirm_the_whole()
            return
        last, now = self.speeds.of(self.best)[-1], self.speeds.speed(AS_IT_IS)
        held_up = (now / plain) / (self.speeds.speed(self.best) / tuned)
        if held_up < HELD_UP:
            self._note(
                f"the script as it is gave {now:,.0f} samples/s in the last check, but {plain:,.0f} before: "
                "the gain is told against the latter"
            )
            ratios = [ratio * held_up for ratio in ratios]
        self.final = Final(
            mods=list(self.best),
            samples_per_s=self.speeds.speed(self.best),
            gain=mean(ratios),
            gain_low=min(ratios),
            gain_high=max(ratios),
            pairs=len(ratios),
            memory=last.memory,
            loss_difference=self._compared(self.best, last).distance,
        )

    # -- odds and ends ---------------------------------------------------------------------------------------------

    def _open(self) -> list[CandidateStanding]:
        return [one for mod, one in self.standings.items() if not one.out and mod not in self.best]

    def _with(self, standing: CandidateStanding) -> Mods:
        return together(self.best, standing.candidate.mod)

    def _compared(self, mods: Mods, measured: Measured) -> Compared:
        assert self.guard is not None
        return self.guard.compare(measured.losses, promise_of(mods), draws=draws(mods))

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note(text)

    def verdict(self, *, interrupted: bool = False) -> Verdict:
        """What was found until now."""
        rows = sorted(self.standings.values(), key=lambda one: (not one.row.kept, -(one.row.gain or 0.0)))
        for standing in rows:
            if standing.row.code is Reason.NOT_TRIED and self.cut_short:
                standing.row.reason = "not tried: the budget was over"
        return Verdict(
            baseline=verdicts.speed(self.speeds.of(AS_IT_IS)),
            mods=[standing.row for standing in rows],
            final=None if interrupted else self.final,
            noise=self.speeds.noise,
            guard=self.guard.standard if self.guard else None,
            notes=self.notes,
            budget=self.budget,
            spent=self.bench.budget.spent,
            trials=self.speeds.made,
            cut_short=self.cut_short,
            problem=self.problem,
            problem_code=self.problem_code,
            interrupted=interrupted,
        )


def _failure(measured: Measured) -> str:
    """Why a trial gave no speed, in few words."""
    return "out of memory" if measured.status is Status.MEMORY else f"{measured.status}: {measured.message}"


def _problem(measured: Measured) -> Problem:
    """What kind of trouble the script as it is has."""
    if measured.status in (Status.TOO_SHORT, Status.BUDGET):
        return Problem.NO_STEP if not measured.steps else Problem(measured.status)
    return Problem.LOSS if measured.status is Status.NOT_FINITE else Problem.FAILED


def _refusal(compared: Compared) -> str:
    return f"refused, since the loss is not kept: {compared.why}"


def _no_gain(gain: float, margin: float) -> str:
    return f"slower: {gain:.2f}×" if gain < 1 - margin else f"no gain above the noise ({100 * margin:.0f} %)"
