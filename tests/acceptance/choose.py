"""Chooses the scripts of the default run: few that together take nearly every branch that all of them take.

    python tests/acceptance/choose.py        # half an hour; writes default_run.txt

Cases of `test_same_numbers` that are not slow by themselves run under coverage.py: every script on its fewest workers,
every tenth on more. A greedy set cover over the branches of script/ and strategies/ then takes the case that adds most
branches per second, until 95 % are taken: each of the rest would cost a case, and tests/script looks at most of them.
What is left out runs with `make test-all`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import coverage
import covered_zygote
from test_same_numbers import CHOSEN, Case, cases, settings_of

from paceline.launch import Zygote, launch

Branch = tuple[str, int, int]
ENOUGH = 0.95  # of all branches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, help="Number of cases to look at (default: all).")
    limit = parser.parse_args().limit
    found: dict[str, tuple[set[Branch], float]] = {}
    with tempfile.TemporaryDirectory() as folder, covered_zygote.started(folder) as zygote:
        wanted = [case for number, case in enumerate(cases()) if is_candidate(number, case)][:limit]
        for number, case in enumerate(wanted, 1):
            found[case.name] = branches(zygote, case, Path(folder))
            took, seconds = found[case.name]
            print(f"{number}/{len(wanted)} {case.name}: {len(took)} branches, {seconds:.1f} s", flush=True)
    chosen = list(cover(found))
    CHOSEN.write_text("".join(f"{name}\n" for name in sorted(chosen)))
    total = sum(seconds for _, seconds in found.values())
    print(f"{len(chosen)} of {len(found)} cases, {sum(found[name][1] for name in chosen):.0f} of {total:.0f} s.")


def is_candidate(number: int, case: Case) -> bool:
    return not case.slow and (case.workers == min(case.script.workers) or number % 10 == 0)


def branches(zygote: Zygote, case: Case, folder: Path) -> tuple[set[Branch], float]:
    """What the workers of one case left in the folder."""
    with tempfile.TemporaryDirectory() as work, chdir(work):
        began = time.monotonic()
        launch(settings_of(case), zygote=zygote, record=Path(work) / "record", on_event=lambda event: None)
        seconds = time.monotonic() - began
    took: set[Branch] = set()
    for file in folder.iterdir():
        data = coverage.CoverageData(os.fspath(file))
        try:
            data.read()
        except coverage.exceptions.DataError:  # of a process that was killed while it wrote
            file.unlink()
            continue
        for source in data.measured_files():
            took |= {(source, *arc) for arc in data.arcs(source) or ()}
        file.unlink()
    return took, seconds


def cover(found: dict[str, tuple[set[Branch], float]]) -> Iterator[str]:
    missing = set().union(*(took for took, _ in found.values()))
    spared = (1 - ENOUGH) * len(missing)
    while len(missing) > spared:
        name = max(found, key=lambda name: len(found[name][0] & missing) / found[name][1])
        missing -= found[name][0]
        yield name


if __name__ == "__main__":
    main()
