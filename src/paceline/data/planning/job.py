"""The work on one batch or one sample: fetch, map each sample, collate, map the batch.

`Work` has no state, so a job can run in this thread, in another thread, or in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.data.error_policy import LostSamples, Policy
from paceline.data.formats.collate import Allocate, Tray, empty
from paceline.data.formats.sample import decode, decode_together
from paceline.data.planning.order import generator
from paceline.errors import DataError, PacelineError, UsageError

NOTHING: Any = type("Nothing", (), {"__repr__": lambda self: "nothing"})()  # the result for a sample that was left out
Where = Callable[[int], str]
Token = tuple[int, ...]  # identifies a job; seeds its random numbers


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a batch's keys; the first of them has number `first` in the batch."""

    keys: Any
    first: int

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Step:
    """A function of the user, and what happens to a sample if the function raises."""

    function: Callable[..., Any]
    on_error: Policy = "raise"
    seed: int | None = None  # if set, the function also gets a random generator

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, value: Any, where: Where, number: int, losses: LostSamples, token: Token = ()) -> Any:
        try:
            if self.seed is not None:
                return self.function(value, generator(self.seed, *token, number))
            return self.function(value)
        except UsageError:
            raise  # a mistake in the program, not a damaged sample
        except PacelineError as error:
            named = DataError(f"{where(number)}: {error.message}", advice=error.advice)
            losses.lose(named, self.on_error)
        except Exception as error:
            named = DataError(
                f"{self.name} raised {type(error).__name__}: {error}, on {where(number)}.",
                advice="To leave such samples out: on_error='skip', or 'warn' for warnings.",
            )
            if self.on_error == "raise":
                raise named from error
            losses.lose(named, self.on_error)
        return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """`gather` makes a whole batch from keys, `fetch` one sample from a key. Without both, the keys are samples."""

    gather: Callable[[Any], Any] | None = None
    fetch: Callable[[Any], Any] | None = None
    steps: tuple[Step, ...] = ()
    batched: bool = False
    collate: Callable[[list[Any]], Any] | None = None  # the user's function
    after: tuple[Step, ...] = ()

    @property
    def seeded(self) -> bool:
        return any(step.seed is not None for step in (*self.steps, *self.after))

    @property
    def nothing_to_do(self) -> bool:
        return not (self.gather or self.fetch or self.steps or self.batched or self.after)

    @property
    def _are_records(self) -> bool:
        """Whether the keys are packed samples, and decoding is the only step."""
        return self.fetch is None and len(self.steps) == 1 and self.steps[0].function is decode

    def do(self, keys: Any, where: Where, losses: LostSamples, allocate: Allocate = empty, token: Token = ()) -> Any:
        """The batch made from these keys (without batching: the sample made from the only key), or NOTHING."""
        first = 0
        if isinstance(keys, Slice):
            keys, first = keys.keys, keys.first
        if not self.batched:
            return next(self.on_each(keys, where, losses, token), NOTHING)
        if self.gather is not None:
            batch = self.gather(keys)
        elif self.collate is not None:
            made = list(self.on_each(keys, where, losses, token))
            batch = self.collate(made) if made else NOTHING
        elif self.fetch is None and not self.steps and isinstance(keys[0], (bytes, str)):
            batch = list(keys)  # raw records are not collated
        elif self._are_records and (batch := decode_together(keys, allocate)) is not None:
            pass
        else:
            tray = Tray(len(keys), allocate)
            for sample in self.on_each(keys, where, losses, token, first):
                tray.put(sample)
            batch = tray.batch() if tray.count else NOTHING
        for step in self.after:
            if batch is not NOTHING:
                batch = step(batch, lambda _: f"the batch that begins with {where(0)}", 0, losses, token)
        return batch

    def on_each(self, keys: Any, where: Where, losses: LostSamples, token: Token = (), first: int = 0) -> Iterator[Any]:
        """The samples made from these keys; the first has number `first` in its batch."""
        samples = keys if self.fetch is None else self._fetched(keys, where, first)
        for number, sample in enumerate(samples, first):
            for step in self.steps:
                sample = step(sample, where, number, losses, token)
                if sample is NOTHING:
                    break
            else:
                yield sample

    def _fetched(self, keys: Any, where: Where, first: int) -> Iterator[Any]:
        assert self.fetch is not None
        for number, key in enumerate(keys.tolist(), first):
            try:
                yield self.fetch(key)
            except PacelineError:
                raise
            except Exception as error:
                raise DataError(
                    f"{where(number)} could not be loaded: {type(error).__name__}: {error}.",
                    advice="Check the dataset's __getitem__ for this index.",
                ) from error
