"""`paceline view FILE`: traces that were taken elsewhere, in a real browser, as a person opens them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nsight_export import write_nsight
from view_browser import Visit
from view_records import trace
from view_server import Served

from paceline.view.records.adopted import adopt
from paceline.view.server.export import export

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.timeout(900)  # the first one may have to install a browser

SPANS = "document.querySelector('.timeline').tools.spans"


@contextmanager
def viewed(*files: Path) -> Iterator[tuple[str, list[str]]]:
    """`paceline view FILE …` as a process. Gives the address, and what is left in the folder for temporary files."""
    scratch = files[0].parent / "scratch"
    scratch.mkdir()
    left: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "view", *map(str, files)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch)},
        cwd=files[0].parent,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield next(line.split()[1] for line in process.stdout if line.startswith("open:")), left
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        left += os.listdir(scratch)


@contextmanager
def adopted(*files: Path) -> Iterator[str]:
    """The same from this process, which has imported what reads traces. Gives the address."""
    root = files[0].parent / "records"
    root.mkdir()
    name = adopt(files, root)
    served = Served(root)
    yield served.first.replace("/?", f"/timeline/{name}?")
    served.close()


@contextmanager
def opened(browser, url: str) -> Iterator[Visit]:
    page = browser.new_page()
    visit = Visit(page, url.partition("/timeline")[0])
    page.goto(url)
    page.wait_for_function("() => document.querySelector('.timeline[data-ready]')")
    yield visit
    assert visit.complaints == []
    page.close()


def test_a_trace_of_torch_opens_with_its_time_line(browser, tmp_path):
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            torch.nn.functional.relu(torch.ones(64, 64) @ torch.ones(64, 64))
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress((tmp_path / "trace.json").read_bytes()))
    with viewed(tmp_path / "trace.json.gz") as (url, left), opened(browser, url) as visit:
        page = visit.page
        assert page.locator(".of").inner_text().startswith("trace.json.gz, 20")  # and its date
        assert "aten::relu" in page.evaluate(f"{SPANS}.names")
        page.get_by_role("link", name="Ops", exact=True).click()
        page.wait_for_selector("#grid-ops tbody tr")
        assert "aten::relu" in page.locator("#grid-ops").inner_text()
        page.go_back()
        visit.check()
    assert left == [], "nothing stays behind"


def test_a_trace_of_the_tensorboard_handler_opens_compressed_as_it_is(browser, tmp_path):
    """As people take it: with a schedule, shapes, memory and stacks."""
    import torch
    from torch.profiler import ProfilerActivity, schedule, tensorboard_trace_handler

    model = torch.nn.Linear(8, 4)
    ready = tensorboard_trace_handler(str(tmp_path), worker_name="w0", use_gzip=True)
    asked = {"record_shapes": True, "profile_memory": True, "with_stack": True, "on_trace_ready": ready}
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3, repeat=1), **asked
    ) as profiler:
        for _ in range(6):
            with torch.profiler.record_function("my part"):
                model(torch.randn(4, 8)).sum().backward()
            profiler.step()
    (path,) = tmp_path.glob("w0.*.pt.trace.json.gz")
    assert path.read_bytes()[:2] == bytes((0x1F, 0x8B)), "gzip"
    with adopted(path) as url, opened(browser, url) as visit:
        page = visit.page
        page.wait_for_function("() => document.querySelector('.timeline[data-ready]')")
        assert page.get_by_role("link", name="all 3").count() == 1
        names = page.evaluate("() => document.querySelector('.timeline').tools.spans.names")
        assert {"my part", "aten::addmm"} <= set(names)
        for link in ("Memory", "Ops"):
            page.get_by_role("link", name=link, exact=True).click()
            page.wait_for_function(f"() => document.title.startsWith('{link}')")
            assert page.locator("tbody tr, .chart").count() > 0
        assert visit.complaints == []


def test_several_files_are_several_ranks(browser, tmp_path):
    files = [trace(rank, 2).write(tmp_path / f"rank{rank}.json") for rank in range(2)]
    with adopted(*files) as url, opened(browser, url) as visit:
        assert visit.page.evaluate(f"[...new Set({SPANS}.tracks.map((track) => track.rank))]") == [0, 1]
        assert visit.page.evaluate(f"{SPANS}.link_kind.includes(1)"), "arrows between the ranks"


def test_an_export_of_nsight_systems_opens(browser, tmp_path):
    path = write_nsight(tmp_path / "report.sqlite", [trace(0, 2), trace(1, 2, late=1.4)])
    with adopted(path) as url, opened(browser, url) as visit:
        page = visit.page
        labels = page.evaluate(f"{SPANS}.tracks.map((track) => `${{track.rank}} ${{track.label}}`)")
        assert labels == [
            *("0 python 4000", "0 GPU 0, stream 7", "0 GPU 0, stream 20"),
            *("1 python 4001", "1 GPU 1, stream 7", "1 GPU 1, stream 20"),
        ]
        assert page.evaluate(f"{SPANS}.link_kind.includes(0) && {SPANS}.link_kind.includes(1)")
        page.get_by_role("button", name="Critical path").click()
        page.wait_for_function("() => document.querySelector('.timeline').dataset.pieces")
        page.locator(".of a").click()
        assert "taken elsewhere" in page.locator(".note").inner_text()
        page.get_by_role("link", name="Kernels").click()
        page.wait_for_selector("#grid-kernels tbody tr")
        assert "sm90_xmma_fprop" in page.locator("#grid-kernels").inner_text()


def test_a_trace_of_another_program_opens(browser, tmp_path):
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "browser"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
        {"ph": "X", "name": "frame", "cat": "blink", "pid": 1, "tid": 2, "ts": 100, "dur": 50},
        {"ph": "B", "name": "paint <b>", "cat": "cc", "pid": 1, "tid": 2, "ts": 110},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 130},
    ]
    (tmp_path / "chrome.json").write_text(json.dumps(events))
    with adopted(tmp_path / "chrome.json") as url, opened(browser, url) as visit:
        page = visit.page
        assert page.evaluate(f"{SPANS}.names") == ["frame", "paint <b>"]
        assert page.evaluate(f"{SPANS}.tracks[0].label") == "browser · main"
        assert page.locator(".timeline h2").inner_text() == "Whole trace"
        assert page.locator(".side a").all_inner_texts() == ["Dashboard", "Time line"], "it has no ops"
        page.locator(".window").press("ArrowDown")
        assert "frame: 50 µs" in page.locator(".timeline .detail").inner_text()


def test_a_trace_becomes_a_report(tmp_path):
    path = trace(0, 1).write(tmp_path / "trace.json.gz")
    (tmp_path / "records").mkdir()
    name = adopt([path], tmp_path / "records")
    _, size = export(tmp_path / "records", name, tmp_path / "report.html")
    assert size > 100_000
    assert "sm90_xmma_fprop" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trace.json", b"not a trace", "not JSON"),
        ("train.py", b"import torch\n", "is a Python script, and not a trace. Type: paceline profile"),
        ("trace.pftrace", b"\n\x10\x08\x01", "traceconv json"),
        ("report.nsys-rep", b"x", "nsys export --type sqlite"),
    ],
)
def test_what_is_no_trace_is_told_before_anything_starts(tmp_path, capfd, name, content, said):
    from paceline.__main__ import main

    (tmp_path / name).write_bytes(content)
    assert main(["view", str(tmp_path / name)]) != 0
    out, err = capfd.readouterr()
    assert out == ""
    assert said in " ".join(err.split())
