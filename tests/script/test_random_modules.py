"""Soundness of the proof: a random module on workers gives plain Python's numbers, or it is refused.

    python tests/script/test_random_modules.py --seeds 0:20000 --workers 2     # a long run; prints each failing seed
    python tests/script/test_random_modules.py --seeds 17 --workers 3          # one program again, in full

`random_modules.py` makes the programs. Asserted for each seed: all numbers are those of plain Python (to rounding) or
the run ended with a ScriptError; and a module that mixes samples was not split as a whole, however weak the mixing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # a program finds only its own folder

import pytest
import random_modules
import torch
from pool import Pools
from random_modules import Made, difference, make
from staged import staged

from paceline.comm.group import Group
from paceline.errors import NotSplitError, ScriptError

TIME_OUT = 300.0  # seconds, of one program on a busy machine


@dataclass(frozen=True, slots=True)
class Seen:
    """What one worker saw of one program."""

    numbers: dict[str, Any] | None  # None if the run was refused
    why: str  # not split as a whole, or refused; empty if it was split


@dataclass(frozen=True, slots=True)
class Verdict:
    made: Made
    kind: str  # "split", "not split", "refused" or "wrong"
    why: str

    def __str__(self) -> str:
        return f"seed {self.made.seed}: {self.why}\n    {self.made}"


def play_staged(group: Group, seed: int) -> Seen:
    made = make(seed)
    options = {} if made.gather_below is None else {"gather_below": made.gather_below}
    with staged(group, **options) as stage:
        try:
            numbers = random_modules.play(made)
        except NotSplitError as error:  # the same on every worker: they remain in step
            return Seen(None, str(error))
        return Seen(numbers, "" if stage.views.refusal is None else str(stage.views.refusal))


def judge(pools: Pools, seeds: list[int], world: int) -> Iterator[Verdict]:
    """A verdict for each seed, in order. After a program that failed, the others run on new workers."""
    for seed in seeds:
        try:
            found = pools(world).run(play_staged, seed, time_out=TIME_OUT)
        except Exception as error:
            text = "".join(getattr(error, "__notes__", [])) or f"{type(error).__name__}: {error}"
            refused = isinstance(error, ScriptError)  # a lost peer, or a peer that raised, is no refusal
            yield Verdict(make(seed), "refused" if refused else "wrong", f"raised {text.strip()[-1500:]}")
        else:
            yield verdict(seed, found)


def verdict(seed: int, found: list[Seen]) -> Verdict:
    expected, made = random_modules.play(make(seed)), make(seed)
    if any(seen.numbers is None for seen in found):
        return Verdict(made, "refused", next(seen.why for seen in found if seen.numbers is None))
    for rank, seen in enumerate(found):
        assert seen.numbers is not None
        if wrong := difference(expected, seen.numbers, made.tolerance, rank):
            how = "in parts or whole" if seen.why else "split"
            return Verdict(made, "wrong", f"rank {rank}, {how}: {wrong}")
    if found[0].why:
        return Verdict(made, "not split", found[0].why)
    return Verdict(made, "wrong", "mixes samples, and was split") if made.must_refuse else Verdict(made, "split", "")


@pytest.mark.parametrize(
    ("world", "seeds"),
    [*((2, range(first, first + 50)) for first in range(0, 200, 50)), (3, range(200, 220))],
)
def test_a_random_module_gives_plain_pythons_numbers(pool: Any, world: int, seeds: range) -> None:
    verdicts = list(judge(pool, list(seeds), world))
    wrong = [str(it) for it in verdicts if it.kind == "wrong"]
    assert not wrong, f"{len(wrong)} of {len(seeds)} programs are wrong on {world} workers:\n" + "\n".join(wrong)
    split = sum(it.kind == "split" for it in verdicts)
    assert split >= len(seeds) / 6, f"{split} of {len(seeds)} programs are split: too few to show anything"


def test_programs_that_were_wrong_once_in_a_long_run(pool: Any) -> None:
    """A factor of one digit in bfloat16 that every other row gets; a corner that is left out of more samples only."""
    assert [it.kind for it in judge(pool, [8049, 4472], 2)] == ["not split", "not split"]


@pytest.mark.parametrize("seed", range(20))
def test_a_random_program_is_the_same_each_time(seed: int) -> None:
    assert not difference(random_modules.play(make(seed)), random_modules.play(make(seed)), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:200", help="One seed, or FIRST:END (default: 0:200).")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="Print the programs that are right, too.")
    args = parser.parse_args()
    first, _, end = args.seeds.partition(":")
    seeds = list(range(int(first), int(end or int(first) + 1)))
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    pools, began = Pools(), time.monotonic()
    try:
        for number, it in enumerate(judge(pools, seeds, args.workers), 1):
            counts[it.kind] += 1
            if it.kind == "wrong" or args.verbose or len(seeds) == 1:
                print(f"{it.kind.upper()} {it}", flush=True)
            if number % 1000 == 0:
                print(f"… {number} programs, {time.monotonic() - began:.0f} s: {dict(counts)}", flush=True)
    finally:
        pools.close()
    shown = ", ".join(f"{counts[kind]} {kind}" for kind in ("split", "not split", "refused", "wrong"))
    print(f"{len(seeds)} programs on {args.workers} workers, {time.monotonic() - began:.0f} s: {shown}")
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
