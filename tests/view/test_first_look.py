"""What a person sees first, in a real browser: one sentence and the next command, runs by name, and calm charts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from view_browser import Visit
from view_records import BEGUN, SLOW, TRAIN, Machine, make_live, make_run, make_scale
from view_server import Served

from paceline.cli.series import recorded
from paceline.record import Outcome, Run, Step, WorkerInfo, read_run, write_run
from paceline.record.about.labels import read_labels

pytestmark = pytest.mark.timeout(900)  # the first one may have to install a browser

HALF, EVEN, BROKEN = "2026-11-16T09-00-00-half", "2026-11-16T09-10-00-even", "2026-11-16T09-20-00-scale-broken"
MEMORY = "2026-11-16T09-30-00-memory"
OWN = "2026-11-16T09-40-00-ddp"  # a script that distributes itself
RUNNING = "2026-11-15T08-00-00-train"  # older than the others


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "paceline-runs"
    make_run(folder / TRAIN, seed=1, traced=True)
    make_half(folder / HALF)
    make_even(folder / EVEN)
    make_scale(folder / "2026-11-15T11-02-47-train")
    make_live(folder / RUNNING)
    run = read_run(folder / RUNNING)
    run.started = time.time() - 190
    write_run(folder / RUNNING, run)
    make_broken_scale(folder / BROKEN)
    make_traced(folder / MEMORY)
    make_distributed(folder / OWN)
    return folder


def make_distributed(folder: Path) -> None:
    """As under --as torchrun: the seams of a model are not called, and samples not counted."""
    parts = {"data": 0.0, "forward": 0.0, "backward": 0.0, "communication": 0.004, "optimizer": 0.01, "other": 0.086}
    steps = [Step(step=n, at=BEGUN + n, samples=0, total=0.1, split=False, **parts) for n in range(1, 81)]
    plain_run(steps, folder, "ddp.py")
    run = read_run(folder)
    run.settings["launch_as"] = "torchrun"
    write_run(folder, run)


def plain_run(steps: list[Step], folder: Path, script: str = "cnn.py") -> None:
    """Two workers on a machine without GPUs."""
    folder.mkdir(parents=True)
    for rank in range(2):
        # Rank 1 takes up to a millisecond more, or less, for its own work.
        for each in steps if rank else ():
            late = 0.001 * (each.step % 3 - 1)
            each.forward += late
            each.communication -= late
        lines = [msgspec.json.encode(each) + b"\n" for each in steps]
        (folder / f"steps.rank{rank}.jsonl").write_bytes(b"".join(lines))
    cores = [{"id": n, "node": 0, "physical": [0, n]} for n in range(2)]
    write_run(
        folder,
        Run(paceline="0.1.0", verb="run", script=script, arguments=["--epochs", "2"], settings={"workers": 2},
            topology={"name": "node1", "cores": cores, "gpus": []},
            workers=[WorkerInfo(rank=r, host="node1", pid=1, cores=[r], threads=1) for r in range(2)], started=BEGUN,
            outcome=Outcome(exit_code=0, seconds=40.0, steps=len(steps))),
    )  # fmt: skip


def step_of(number: int, *, data: float = 0.001, communication: float = 0.04, loss: float = 1.0) -> Step:
    parts = {"data": data, "forward": 0.03, "backward": 0.06, "communication": communication, "optimizer": 0.003}
    return Step(step=number, at=BEGUN + number, samples=64, total=sum(parts.values()), loss=loss, **parts)


def make_half(folder: Path) -> None:
    """Half as fast after step 120, because of the loader; a spike of the loss."""
    plain_run(
        [
            step_of(n, data=0.136 if n > 120 else 0.001, loss=900.0 if n == 60 else 2.0 - n / 200, communication=0.042)
            for n in range(1, 201)
        ],
        folder,
    )


def make_even(folder: Path) -> None:
    plain_run([step_of(n, communication=0.0015) for n in range(1, 61)], folder, "even.py")


def make_traced(folder: Path) -> None:
    """Three traced steps that allocate and free."""
    plain_run([step_of(n) for n in range(1, 6)], folder, "memory.py")
    machine = Machine(0, 1)
    reaching = machine.op("aten::reaching")  # it ends the first step, and a little of it is in the second
    for number in range(3):
        with machine.step():
            machine.work(10_000)
            if number == 1:
                reaching.__exit__(None, None, None)
            with machine.annotation("paceline.forward"):
                machine.work(500_000)
                machine.memory(4 << 20, 1000 + number, 8 << 20, 16 << 20, device=-1)
            machine.work(500_000)
            machine.memory(-(4 << 20), 1000 + number, 4 << 20, 16 << 20, device=-1)
            if number == 0:
                reaching.__enter__()
                machine.work(5_000)
    machine.write(folder / "trace.rank0.json.gz")


def make_broken_scale(folder: Path) -> None:
    """As `paceline scale` leaves it where the script raises."""
    folder.mkdir(parents=True)
    run = Run(paceline="0.1.0", verb="scale", script="broken.py", arguments=[], settings={})
    with recorded(folder, run) as outcome:
        failed = Outcome(exit_code=1, seconds=2.0, error="ValueError", cause="raised ValueError: unknown label 3")
        make_run(folder / "trials" / "round1-workers1", ranks=1, steps=3, outcome=failed)
        outcome.exit_code = 1
    (folder / "verdict.json").write_text(json.dumps({"mode": "strong", "base": 1, "rounds": 1, "steps": 0, "warm_up": 0,
        "points": [], "same_numbers": {"checked": False, "why": "no trial succeeded"}, "interrupted": False,
        "failures": [{"workers": 1, "round": 1, "message": "Worker 0 failed", "record": "r"}]}))  # fmt: skip


@pytest.fixture(scope="module")
def visit(browser, root) -> Iterator[Visit]:
    served = Served(root)
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(served.first)
    made = Visit(page, served.base)
    yield made
    context.close()
    served.close()
    assert made.complaints == []


@pytest.fixture(autouse=True)
def wide(visit) -> None:
    visit.page.set_viewport_size({"width": 1440, "height": 900})


# -- the dashboard -----------------------------------------------------------------------------------------------------


def test_the_dashboard_opens_with_one_sentence_from_the_measurements_and_the_next_command(visit):
    page = visit.open(f"/run/{HALF}")
    first = page.locator(".blocks > *").first
    said = first.locator(".sentence").inner_text()
    assert "Throughput fell by half after step 120" in said
    assert "most of it in data" in said
    assert first.locator("code").inner_text() == "paceline profile -n 2 cnn.py --epochs 2"
    said = visit.open(f"/run/{EVEN}").locator(".verdict .sentence").inner_text()
    assert said == "2 workers: 97 % of a step is computation."
    said = visit.open(f"/run/{TRAIN}").locator(".verdict .sentence").inner_text()
    assert f"worker {SLOW} keeps the others waiting" in said
    assert "most of it in" not in said, "the first worker waits for that one: no cause"
    told = visit.page.locator(".verdict .type").inner_text()
    assert "measured 1.62×" in told
    assert "paceline run -n 4 --mod precision=bf16 train.py --epochs 3" in told


def test_two_figures_are_large_and_no_dots_look_like_events(visit):
    page = visit.open(f"/run/{EVEN}")
    sizes = page.evaluate(
        "() => [...document.querySelectorAll('.tile .value')].map((one) => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert sorted(sizes)[-3] <= 0.6 * sorted(sizes)[-2]
    large = page.locator(".tile.large .label").all_inner_texts()
    assert large == ["samples/s", "loss"]
    assert page.locator(".chart .points").count() == 0


def test_the_loss_of_a_run_has_the_controls_of_compare_and_an_axis_that_a_spike_does_not_squeeze(visit):
    page = visit.open(f"/run/{HALF}")
    shown = "() => document.querySelector('#chart-loss .figure').view.y"
    assert page.evaluate(f"({shown})().high") < 5
    assert "1 value above the axis" in page.locator("#chart-loss .how").get_attribute("data-how")
    page.get_by_label("logarithmic y").check()
    assert page.evaluate(f"10 ** ({shown})().high") > 900, "a logarithmic axis shows all"
    before = page.locator("#chart-loss .line").count()
    page.get_by_label("smoothing").fill("0.9")
    page.wait_for_function(f"() => document.querySelectorAll('#chart-loss .line').length === {2 * before}")
    page.locator(".over").get_by_role("link", name="samples seen").click()
    page.wait_for_function("() => document.querySelector('#chart-loss[data-drawn]')")
    assert page.evaluate("document.querySelector('#chart-loss .figure').view.figure.layout.xaxis.title.text") == (
        "samples seen"
    )


def test_times_of_steps_are_in_milliseconds_on_every_axis(visit):
    for address in (f"/run/{EVEN}", f"/iterations/{EVEN}", f"/ranks/{EVEN}", f"/compare?run={EVEN}&run={HALF}"):
        page = visit.open(address)
        axes = page.evaluate(
            "() => [...document.querySelectorAll('.chart .figure')].flatMap((place) => [place.view.x, place.view.y]"
            ".filter((scale) => /time/.test(scale.axis.title.text)).map((scale) => scale.ticks(40).map(([, words]) =>"
            " words)))"
        )
        assert axes, address
        assert all(words.endswith(" ms") for ticks in axes for words in ticks), (address, axes)


def test_a_run_is_compared_from_its_dashboard(visit):
    page = visit.open(f"/run/{EVEN}")
    choice = page.get_by_label("Compare with")
    choice.select_option(label=next(one for one in choice.locator("option").all_inner_texts() if "cnn.py" in one))
    page.wait_for_url("**/compare?*")
    assert page.locator("#grid-compared tbody tr").count() == 2


def test_name_and_tags_are_edited_in_place(visit, root):
    page = visit.open(f"/run/{EVEN}")
    page.get_by_role("button", name="Edit name and tags").click()
    page.get_by_label("name", exact=True).fill("the even one")
    page.get_by_label("tags", exact=True).fill("baseline, b2")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("heading", name="the even one").wait_for()
    assert page.locator(".tags span").all_inner_texts() == ["baseline", "b2"]
    labels = read_labels(root / EVEN)
    assert (labels.name, labels.tags) == ("the even one", ("baseline", "b2"))
    page.get_by_role("button", name="Edit name and tags").click()
    page.get_by_label("tags", exact=True).fill("a;b")
    page.get_by_role("button", name="Save").click()
    page.wait_for_function("() => document.querySelector('.problem').textContent.includes('not a tag')")
    assert visit.complaints.pop().count("422"), "the browser logs the refusal"
    assert read_labels(root / EVEN).tags == ("baseline", "b2")


def test_only_a_page_of_ours_can_change_labels(root, client_of):
    client = client_of(root)
    told = {"name": "theirs"}
    assert client.post(f"/labels/{HALF}", json=told).status_code == 403, "without the header"
    assert client.post(f"/run/{HALF}", json=told, headers={"X-Paceline": "labels"}).status_code == 405
    assert client.post("/labels/../x", json=told, headers={"X-Paceline": "labels"}).status_code in (404, 405, 422)
    stranger = client_of(root, token="")
    assert stranger.post(f"/labels/{HALF}", json=told, headers={"X-Paceline": "labels"}).status_code == 401
    assert not read_labels(root / HALF)


def test_labels_follow_no_link(tmp_path, client_of):
    make_run(tmp_path / "runs" / "a", steps=3, ranks=1)
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "runs" / "a" / "labels.json").symlink_to(outside)
    (tmp_path / "runs" / "a" / ".labels.json.new").symlink_to(outside)
    client_of(tmp_path / "runs").post("/labels/a", json={"name": "b"}, headers={"X-Paceline": "labels"})
    assert outside.read_text() == "mine"
    assert read_labels(tmp_path / "runs" / "a").name == "b"


# -- the list ----------------------------------------------------------------------------------------------------------


def test_runs_are_listed_by_name_with_running_ones_on_top(visit):
    page = visit.open("/")
    rows = page.locator("#grid-runs tbody tr")
    assert "running" in rows.first.inner_text(), "also where it began before the others"
    assert "3 min ago" in rows.first.inner_text()
    assert rows.first.locator("a").inner_text() == "train.py"
    assert rows.first.locator("a").get_attribute("title") == RUNNING
    broken = page.locator("#grid-runs tr", has_text="broken.py").inner_text()
    assert "ValueError: unknown label 3" in broken
    assert "exit code" not in broken
    half = page.locator("#grid-runs tr", has_text="cnn.py")
    assert half.locator("svg.spark").get_attribute("aria-label").startswith("from ")
    assert half.locator(".chip span").all_inner_texts() == ["run", "succeeded"]


def test_runs_are_chosen_by_verb_and_state(visit):
    page = visit.open("/")
    page.get_by_label("Only verb").select_option("scale")
    visible = page.locator("#grid-runs tbody tr:visible")
    page.wait_for_function("() => document.querySelector('#grid-runs .count').textContent === '2 rows'")
    page.get_by_label("Only state").select_option("failed")
    page.wait_for_function("() => document.querySelector('#grid-runs .count').textContent === '1 row'")
    assert "broken.py" in visible.inner_text()


def test_the_server_chooses_runs_as_the_page_does(root, client_of):
    rows = client_of(root).get("/json/runs/runs/all?only-verb=scale&only-state=failed").json()["rows"]
    assert [row["name"] for row in rows] == [BROKEN]


def test_the_list_does_not_scroll_within_the_page_and_is_cards_on_a_phone(visit):
    page = visit.open("/")
    inner = (
        "() => [...document.querySelectorAll('main *')].filter((one) => one.offsetParent && one.scrollHeight > "
        "one.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(one).overflowY)).length"
    )
    page.set_viewport_size({"width": 1440, "height": 300})
    assert page.evaluate(inner) == 0
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate(inner) == 0
    assert not page.locator("#grid-runs thead").is_visible()
    row = page.locator("#grid-runs tbody tr", has_text="broken.py")
    assert row.bounding_box()["width"] <= 400
    assert row.get_by_text("ValueError: unknown label 3").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# -- the other pages ---------------------------------------------------------------------------------------------------


def test_a_healthy_run_looks_calm_among_ranks_and_a_straggler_does_not(visit):
    strongest = (
        "() => Math.max(...[...document.querySelectorAll('#chart-heat .figure')].flatMap(({ view }) => {"
        "  const { z, zmin, zmax } = view.figure.data[0];"
        "  return z.flat().map((value) => (value - zmin) / (zmax - zmin)); }))"
    )
    visit.open(f"/ranks/{EVEN}")
    assert visit.page.evaluate(strongest) < 0.1
    visit.open(f"/ranks/{TRAIN}")
    assert visit.page.evaluate(strongest) > 0.15


def test_outliers_are_the_first_rows_of_the_iterations(visit):
    page = visit.open(f"/iterations/{TRAIN}")
    steps = page.locator("#grid-iterations tbody tr td:nth-child(2)").all_inner_texts()[:8]
    assert steps[:5] == ["203", "203", "203", "203", "1"], "it waited for data, on four ranks"


def test_a_time_line_tells_ops_from_phases_and_lists_marks_after_events(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=2")
    inks = page.evaluate(
        "() => { const { inks, spans } = document.querySelector('.timeline').tools.line;"
        " return [Object.fromEntries(PHASES.map((phase) => [phase, inks[phase]])),"
        " Object.fromEntries(spans.kinds.map((kind, n) => [kind, inks.kinds[n]]))]; }"
    )
    phases, kinds = inks
    alone = set(kinds) - {"communication", "mark"}
    assert not set(phases.values()) & {kinds[kind] for kind in alone}, "one colour is one thing"
    listed = page.locator("#grid-longest tbody tr td:nth-child(2)").all_inner_texts()
    assert "mark" in listed
    assert listed == sorted(listed, key=lambda kind: kind == "mark")


def test_a_step_of_a_time_line_has_no_event_of_the_step_before(visit):
    drawn = "() => { const { spans } = document.querySelector('.timeline').tools.line; return spans.names; }"
    visit.open(f"/timeline/{MEMORY}?step=1")
    assert "aten::reaching" in visit.page.evaluate(drawn)
    visit.open(f"/timeline/{MEMORY}?step=2")
    assert "aten::reaching" not in visit.page.evaluate(drawn)


def test_arrows_of_a_time_line_are_quiet_in_the_dark(visit):
    page = visit.open(f"/timeline/{TRAIN}?step=2")
    page.emulate_media(color_scheme="dark")

    def bright(name: str) -> float:
        found = page.evaluate(f"colour('{name}')").lstrip("#")
        return sum(int(found[at : at + 2], 16) for at in (0, 2, 4)) / 3

    assert page.evaluate("document.querySelector('.timeline').tools.line.colours().arrow") == page.evaluate(
        "colour('arrow')"
    )
    assert bright("card") < bright("arrow") < 0.6 * bright("ink")
    page.emulate_media(color_scheme="light")


def test_memory_shows_where_each_step_begins(visit):
    page = visit.open(f"/memory/{MEMORY}")
    assert page.locator(".chart .label").all_text_contents() == ["step 1", "step 2", "step 3"]
    assert page.locator(".chart .rule").count() == 3


def test_a_machine_with_nothing_to_choose_is_one_sentence(visit):
    page = visit.open(f"/topology/{EVEN}")
    assert page.locator(".blocks > *").count() == 1
    assert "2 cores in one NUMA node and no GPU" in page.locator(".note").inner_text()
    assert visit.open(f"/topology/{TRAIN}").locator(".picture").count() == 1, "a machine with GPUs is drawn"


@pytest.mark.parametrize("page_of", [f"run/{EVEN}", f"compare?run={EVEN}&run={HALF}", f"devices/{TRAIN}"])
def test_a_colour_of_a_phase_is_that_phase_in_every_chart_of_a_page(visit, page_of):
    page = visit.open(f"/{page_of}")
    phases = page.evaluate("PHASES")
    for card in page.locator(".chart").all():
        names = page.evaluate("(card) => card.querySelector('.figure').view.figure.data", card.element_handle())
        for trace in names:
            for part in ("line", "marker"):
                colour = trace.get(part, {}).get("color", "")
                assert colour not in phases or trace["name"] == colour, trace["name"]
    for part in page.locator(".split .legend li:has(i)").all():
        colour = part.locator("i").get_attribute("class").removeprefix("c-")
        assert colour not in phases or colour in part.inner_text() or "idle: input" in part.inner_text()


def test_a_run_in_progress_is_drawn_as_one_that_ended(visit):
    page = visit.open(f"/live/{RUNNING}")
    page.wait_for_function("() => document.querySelectorAll('[data-chart] .line').length === 3")
    drawn = page.evaluate(
        "() => [...document.querySelectorAll('[data-chart] .figure')].map(({ view }) =>"
        " [view.figure.data[0].line.color, view.y.axis.title.text, view.y.ticks(40).map(([, words]) => words)])"
    )
    assert {colour for colour, _, _ in drawn} == {"series1"}
    (ticks,) = [ticks for _, title, ticks in drawn if title == "step time"]
    assert all(words.endswith(" ms") for words in ticks)


def test_what_was_not_measured_is_not_zero(visit):
    page = visit.open(f"/run/{OWN}")
    legend = page.locator(".split .legend").inner_text()
    assert "forward, backward, communication: not measured" in legend
    assert "other 90 ms" in " ".join(legend.split()), "what was seen of communication is part of it"
    assert "Throughput" not in page.locator("main").inner_text()
    assert "0 samples" not in page.locator("main").inner_text()
    page = visit.open(f"/ranks/{OWN}")
    assert page.locator(".note.good").count() == 0
    assert "Whether a rank is slow is not known: the parts of a step were not timed." in page.content()
    assert "communication" not in page.locator("main").inner_text()
    page = visit.open(f"/iterations/{OWN}")
    assert "Parts of a step" not in page.locator("main").inner_text()


def test_titles_name_the_script_and_the_date(visit):
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(BEGUN))
    assert visit.open(f"/run/{HALF}").title() == f"cnn.py, {began} · paceline"
    assert visit.open(f"/iterations/{HALF}").title() == f"Iterations · cnn.py, {began} · paceline"
    assert visit.open("/run/2026-11-15T11-02-47-train").title() == f"Scaling of train.py, {began} · paceline"


def test_a_report_has_the_same_controls(browser, root, tmp_path):
    from paceline.view.server.export import export

    export(root, HALF, tmp_path / "report.html")
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.goto((tmp_path / "report.html").as_uri())
    page.get_by_label("logarithmic y").check()
    page.wait_for_function("() => document.querySelector('#chart-loss .figure').view?.y.log")
    assert page.locator(".over").count() == 0
    assert complaints == []
    page.close()
