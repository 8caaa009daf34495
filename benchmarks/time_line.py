"""How long a time line of a million events takes to open, in a real browser, and how heavy the first pages are.

    python benchmarks/time_line.py                 # 1,000,000 events of 4 ranks
    python benchmarks/time_line.py --events 200000

Traces are made up: steps of ops, launches and kernels with correlation ids, on two streams per rank. The record is
served as `paceline view` does, and opened with Chromium. Printed are the times from the start of the navigation to the
drawn time line, and to the moment at which all events are in the browser, by the browser's clock: of the first visit
ever, for which the server parses the traces, and keeps their columns beside them, as `profile` does at its end; of the
first visit of a server that was just started, which reads these columns and lays the events out; and of later visits.
Each visit is taken apart: until the page has arrived, until the overview has, until it is drawn. Then the times of
frames while zooming and moving, and the bytes that a browser with an empty cache loads for a page.

On a VM with two cores and 7 to 10 busy processes of others, once before and twice after the columns, the layout and the
overview were kept (after, before, after): first visit of a server 16.2 s to read the traces and make the page of ops,
then 3.8 s → 1.2 to 1.7 s (medians of three servers: 1.5 and 1.2 s). Later visits, until it is drawn: 1.0 to 1.6 s → 0.8
to 1.8 s, no clear difference; until all events are there: 1.7 and 1.4 s. Bytes until it is drawn: 28.5 MB → 2.9 MB. CPU
time of the server's layout alone 1.7 s → of its whole first visit 0.3 to 0.4 s. The first visit ever, if `profile` has
kept nothing, still parses the traces: 20 s, 7 s of them CPU time.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / folder) for folder in ("view", "tables")]

from view_browser import FLAGS  # noqa: E402
from view_records import TOKEN, TRAIN, make_run  # noqa: E402
from view_server import Served  # noqa: E402

RANKS, STEPS, SERVERS, VISITS = 4, 20, 3, 2
ADDRESS = f"/timeline/{TRAIN}?step=1&until={STEPS}"
WITHIN = 300_000  # milliseconds to wait at most


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--events", type=int, default=1_000_000)
    asked.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    given = asked.parse_args()
    busy, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"on {cores} cores, for which {busy:.1f} processes wait or run (the load average before the benchmark)")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "paceline-runs"
        make_run(root / TRAIN, ranks=RANKS, steps=STEPS, traced=True)
        for rank in range(RANKS):
            write_trace(root / TRAIN / f"trace.rank{rank}.json.gz", rank, given.events // RANKS)
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=given.chromium, args=FLAGS)
            with serving(root) as served:
                report("the first visit ever: parses the traces", [visit(browser, served, ADDRESS)])
            fresh, later = [], []
            for _ in range(SERVERS):
                with serving(root) as served:
                    fresh.append(visit(browser, served, ADDRESS))
                    later += [visit(browser, served, ADDRESS) for _ in range(VISITS)]
            report("the first visit of a server", fresh)
            report("later visits", later)
            with serving(root) as served:
                move(browser, served)
                for path in ("/", f"/run/{TRAIN}", f"/timeline/{TRAIN}"):
                    weight, parts = weigh(browser, served, path)
                    heaviest = ", ".join(f"{name} {size / 1000:.0f} kB" for name, size in parts[:3])
                    print(f"first visit of {path.replace(TRAIN, 'RECORD')}: {weight / 1000:.0f} kB ({heaviest})")
            browser.close()


@contextmanager
def serving(root: Path) -> Iterator[Served]:
    """A server that knows nothing of the record yet."""
    served = Served(root)
    try:
        yield served
    finally:
        served.close()


@contextmanager
def opened(browser: Any, served: Served) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WITHIN)
    page.goto(served.first)
    yield page
    context.close()


def visit(browser: Any, served: Served, address: str) -> dict[str, float]:
    """Seconds since the start of a navigation, by the browser's clock, and megabytes."""
    with opened(browser, served) as page:
        computed = time.process_time()
        page.goto(served.base + address, wait_until="commit")
        page.wait_for_function("() => document.querySelector('.timeline')?.dataset.whole")
        computed = time.process_time() - computed
        told = page.evaluate(TIMES)
        print(f"  {page.locator('.timeline .status').inner_text().rpartition('· ')[2]}", end="\r", file=sys.stderr)
    return {**told, "the server's CPU time": computed}


TIMES = """() => {
  const card = document.querySelector('.timeline').dataset, [page] = performance.getEntriesByType('navigation');
  const part = (name) => performance.getEntriesByType('resource').find((each) => each.name.includes('/' + name + '/'));
  const overview = part('overview'), whole = part('spans');
  return {
    'drawn': card.opened / 1000, 'page there': page.responseEnd / 1000, 'overview there': overview.responseEnd / 1000,
    'all events there': card.whole / 1000, 'MB of the overview': overview.encodedBodySize / 1e6,
    'MB of all events': whole.encodedBodySize / 1e6,
  };
}"""


def report(what: str, visits: list[dict[str, float]]) -> None:
    drawn = [one["drawn"] for one in visits]
    print(f"{what}: {statistics.median(drawn):.2f} s until it is drawn ({min(drawn):.2f} to {max(drawn):.2f} s)")
    rest = {name: statistics.median(one[name] for one in visits) for name in visits[0] if name != "drawn"}
    print("  " + ", ".join(f"{name} {value:.2f}" for name, value in rest.items()))


def move(browser: Any, served: Served) -> None:
    with opened(browser, served) as page:
        page.goto(served.base + ADDRESS)
        page.wait_for_function("() => document.querySelector('.timeline')?.dataset.whole")
        page.locator(".window").focus()
        frames = []
        for key in ["+"] * 12 + ["d"] * 6 + ["-"] * 12:
            page.evaluate("() => { document.querySelector('.timeline').dataset.ms = ''; }")
            page.keyboard.press(key)
            page.wait_for_function("() => document.querySelector('.timeline').dataset.ms")
            frames.append(float(page.locator(".timeline").get_attribute("data-ms")))
    print(f"frames while zooming and moving: {statistics.median(frames):.1f} ms (at most {max(frames):.1f} ms)")


def weigh(browser: Any, served: Served, path: str) -> tuple[int, list[tuple[str, int]]]:
    """The bytes that a browser with an empty cache loads for a page, as sent: compressed, with headers, without the
    spans of a time line, which are data."""
    context = browser.new_context()
    context.set_extra_http_headers({"Authorization": f"Bearer {TOKEN}"})
    page = context.new_page()
    page.set_default_timeout(WITHIN)
    sizes: list[tuple[str, int]] = []

    def add(request: Any) -> None:
        told = request.sizes()
        if not re.search("/(spans|overview)/", request.url) and not request.url.startswith("data:"):
            name = request.url.removeprefix(served.base).partition("?")[0].replace(TRAIN, "RECORD")
            sizes.append((name, told["responseBodySize"] + told["responseHeadersSize"]))

    page.on("requestfinished", add)
    page.goto(served.base + path, wait_until="networkidle", timeout=WITHIN)
    context.close()
    sizes.sort(key=lambda one: -one[1])
    return sum(size for _, size in sizes), sizes


def write_trace(path: Path, rank: int, events: int) -> None:
    """A trace of `events` events in torch's format: per layer an op, an inner op, a launch and a kernel."""
    layers, number, now, free = max(events // STEPS // 4, 1), 1, 3_872_733_057_105_000.0, 0.0
    with gzip.open(path, "wb", compresslevel=1) as file:
        head = {"schemaVersion": 1, "baseTimeNanoseconds": 1790857026000000000}
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": RANKS}
        file.write(msgspec.json.encode(head)[:-1] + b',"traceEvents":[')
        for step in range(1, STEPS + 1):
            told, begun = [], now
            for layer in range(layers):
                number += 1
                free = max(free, now + 9) + 0.5
                length, talks = 3 + (layer * 7) % 12, layer % 200 == 199
                host = {"pid": 1, "tid": 1 + layer % 2, "args": {"External id": number, "correlation": number}}
                on_device = {"device": rank, "stream": 20 if talks else 7, **host["args"]}
                kernel = (
                    "ncclDevKernel_AllReduce" if talks else f"void at::native::kernel_{layer % 80}<float, 4>(float*)"
                )
                told += [
                    event("cpu_op", f"aten::op_{layer % 60}", now, 14, **host),
                    event("cpu_op", f"aten::op_{(layer + 7) % 60}", now + 2, 10, **host),
                    event("cuda_runtime", "cudaLaunchKernel", now + 5, 4, **host),
                    event("kernel", kernel, free, length, pid=0, tid=on_device["stream"], args=on_device),
                ]
                free += length
                now += 15
            told.append(event("user_annotation", f"ProfilerStep#{step}", begun, now - begun - 0.5, pid=1, tid=1))
            file.write(msgspec.json.encode(told)[1:-1] + (b"," if step < STEPS else b"]}"))


def event(cat: str, name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": round(start, 3), "dur": round(length, 3), **more}


if __name__ == "__main__":
    main()
