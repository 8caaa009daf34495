"""Which scripts of tests/scripts have modules that are not split: a measure of what a change of the proof costs.

    python tests/acceptance/split_share.py --out OLD.json             # ten minutes: every script once, on 2 workers
    python tests/acceptance/split_share.py --out NEW.json             # in another checkout
    python tests/acceptance/split_share.py --compare OLD.json NEW.json

A script runs under default settings and the options in its header. The file maps a script's name to its exit code and
its notices. A run that takes longer than `--limit` seconds has no notices of a finished run: its exit code is not 0.

Numbers are not compared here: `test_same_numbers.py` does that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from typing import TypedDict

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a program, which finds only its own folder

from corpus import Script, scripts
from test_same_numbers import Case, settings_of

from paceline.errors import PacelineError
from paceline.launch import Zygote, launch

WORKERS = 2
NOT_SPLIT = "Therefore"  # in each notice about a module that runs whole, or whose children are split
WHOLE = "computes it whole"
_MODULE = re.compile(r"[Mm]odule (\w+)")


class Played(TypedDict):
    exit: int | str  # the text of the error if no worker was started
    notices: list[str]


Share = dict[str, Played]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="Run the scripts, and write this JSON file.")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="Compare two such files.")
    parser.add_argument("--only", default="", help="Run only scripts whose name contains this text.")
    parser.add_argument("--limit", type=float, default=120.0, help="Seconds for one script (default: 120).")
    args = parser.parse_args()
    if (args.out is None) == (args.compare is None):
        parser.error("Pass either --out or --compare.")
    if args.compare is not None:
        old, new = (json.loads(path.read_text()) for path in args.compare)
        compare(old, new)
        return
    found = measure([script for script in scripts() if args.only in script.name], args.limit)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    summarise(found)


def measure(wanted: list[Script], limit: float) -> Share:
    found: Share = {}
    with Zygote.start() as zygote:
        for number, script in enumerate(wanted, 1):
            began = time.monotonic()
            found[script.name] = play(zygote, script, limit)
            shown = " · ".join(f"{name} {how}" for name, how in not_split(found[script.name]).items()) or "split"
            seconds = time.monotonic() - began
            print(
                f"{number}/{len(wanted)} {script.name}: exit {found[script.name]['exit']}, {shown}, {seconds:.1f} s",
                flush=True,
            )
    return found


def play(zygote: Zygote, script: Script, limit: float) -> Played:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        with chdir(work):
            settings = settings_of(Case(script, WORKERS, "batch"))
            try:
                outcome = launch(
                    settings, zygote=zygote, record=Path(folder) / "record", on_event=lambda _: None, limit=limit
                )
            except PacelineError as error:
                return {"exit": str(error), "notices": []}
    return {"exit": outcome.exit_code, "notices": list(outcome.notices)}


def not_split(played: Played) -> dict[str, str]:
    """The modules that are not split: name → "whole" or "in parts"."""
    found: dict[str, str] = {}
    for notice in played["notices"]:
        if NOT_SPLIT in notice:
            named = _MODULE.search(notice)
            found[named[1] if named else notice] = "whole" if WHOLE in notice else "in parts"
    return found


def summarise(found: Share) -> None:
    each = {name: not_split(played) for name, played in found.items()}
    noticed = [name for name, modules in each.items() if modules]
    whole = [name for name in noticed if "whole" in each[name].values()]
    failed = [name for name, played in found.items() if played["exit"] != 0]
    print(f"{len(noticed)} of {len(found)} scripts have a module that is not split ({len(whole)} with one run whole).")
    print(f"{len(failed)} runs failed or were refused: {', '.join(failed) or 'none'}")


def compare(old: Share, new: Share) -> None:
    for title, share in (("old", old), ("new", new)):
        print(f"{title}: ", end="")
        summarise(share)
    changes: dict[str, list[str]] = {"Newly run whole or in parts": [], "Newly split": [], "Ends differently": []}
    worse, better, ends = changes.values()
    for name in sorted(old.keys() & new.keys()):
        before, after = not_split(old[name]), not_split(new[name])
        for module in sorted(before.keys() | after.keys()):
            was, now = before.get(module, "split"), after.get(module, "split")
            if was != now:
                rank = ("split", "in parts", "whole")
                (worse if rank.index(now) > rank.index(was) else better).append(f"{name}: {module} {was} → {now}")
        if old[name]["exit"] != new[name]["exit"]:
            ends.append(f"{name}: exit {old[name]['exit']} → {new[name]['exit']}")
    for title, lines in changes.items():
        print(f"{title}: {len(lines)}")
        for line in lines:
            print(f"  {line}")
    if missing := sorted(old.keys() ^ new.keys()):
        print(f"In one file only: {', '.join(missing)}")


if __name__ == "__main__":
    main()
