"""`make test-frameworks`: programs of many frameworks, by plain Python and on 2 workers; writes docs/frameworks.md.

    python tests/frameworks/run.py              # all
    python tests/frameworks/run.py keras timm   # those with such a name: their rows of the table
    python tests/frameworks/run.py --workers 3  # the table, which is of 2 workers, stays as it is

The exit code is 1 if a program prints other numbers, crashes or hangs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import table
from programs_run import WRONG, read, run

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "frameworks.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="Parts of the names of the programs to run (default: all).")
    parser.add_argument("--workers", type=int, default=2, help="Number of workers (default: 2).")
    given = parser.parse_args()
    names = given.names
    paths = sorted((HERE / "programs").glob("*.py"))
    programs = [read(path) for path in paths if not names or any(name in path.stem for name in names)]
    rows = []
    for number, program in enumerate(programs, 1):
        row = run(program, given.workers)
        rows.append(row)
        took = "{:.0f} s, {:.0f} s".format(*row.seconds)
        print(f"{number}/{len(programs)} {program.path.stem} ({took}): {row.verdict} {row.reason}", flush=True)
        if row.verdict in WRONG or names:
            print(row.output, flush=True)
        if given.workers == 2:
            table.write(PAGE, [row], {path.name for path in paths})
    print(table.summary(row.verdict for row in rows))
    return int(any(row.verdict in WRONG for row in rows))


if __name__ == "__main__":
    sys.exit(main())
