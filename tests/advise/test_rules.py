"""All rules together: what they have in common, whatever they are given, and the page about them."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import msgspec
import pytest
from cuda_trace import Machine
from hypothesis import given
from hypothesis import strategies as st
from made import HALF, MS, SGEMM, TF32, US, evidence, loading, products, reading, small, step

from paceline.advise.book import page, thresholds
from paceline.advise.evidence import Evidence
from paceline.advise.finding import Finding, mods_of, read_findings
from paceline.advise.registry import MODULES, RULES, find_all, findings
from paceline.errors import RecordError
from paceline.mods import catalog
from paceline.record.facts import Facts, LoaderFacts, ModelFacts, OptimizerFacts
from paceline.tables.records import read_files

ROOT = Path(__file__).parents[2]
FACTS = Facts(
    threads=1,
    loaders=[LoaderFacts(batch=64, samples=10_000, dataset="TensorDataset", tensors=True, bytes=1000)],
    models=[ModelFacts(name="Net", parameters=10, bytes=40, convolutions=2)],
    optimizers=[OptimizerFacts(name="AdamW", tensors=10)],
)
DOINGS = st.lists(
    st.tuples(
        st.sampled_from(["products", "tf32", "half", "small", "loading", "reading", "work", "copy", "softmax"]),
        st.integers(1, 40),
    ),
    max_size=6,
)


def play(machine: Machine, doings) -> None:
    for what, much in doings:
        match what:
            case "products":
                products(machine, SGEMM, much * 20 * US, 3)
            case "tf32":
                products(machine, TF32, much * 20 * US, 3)
            case "half":
                products(machine, HALF, much * 20 * US, 3)
            case "small":
                small(machine, much)
            case "loading":
                loading(machine, much * MS // 4)
            case "reading":
                reading(machine)
            case "work":
                machine.work(much * MS // 4)
            case "copy":
                machine.copy("HtoD (Pageable -> Device)", much * 10**6, much * MS // 4, wait=True)
            case "softmax":
                with machine.op("aten::_softmax", US, **{"Input Dims": [[4, 80, 80]], "Input type": ["float"]}):
                    machine.launch("softmax", much * 20 * US)


def check(found: list[Finding], *, known: bool = True) -> None:
    """What holds for every finding. `known`: the script is, as in every record."""
    gains = [finding.predicted_gain or 0.0 for finding in found]
    assert gains == sorted(gains, reverse=True)
    assert all(finding.title and (finding.advice or finding.command) and finding.evidence for finding in found)
    assert {finding.rule for finding in found} <= {rule.name for rule in RULES}
    for finding in found:
        assert "…" not in finding.command
        if known:
            assert not re.search(r"paceline [a-z]+ [^—]*…", finding.advice), "no command is shortened"
            assert not finding.mod or finding.command
        if finding.command:
            program, verb, *_, script = shlex.split(finding.command)
            assert (program, verb, script) == ("paceline", "run", "train.py")
            assert not finding.mod or finding.mod.partition("=")[2] in finding.command
        if finding.predicted_gain is not None:
            assert math.isfinite(finding.predicted_gain)
            assert 0.1 < finding.predicted_gain < 1000
            assert finding.how
        if finding.mod and not finding.mod.startswith("workers="):
            catalog.parse([finding.mod])
        json.dumps([figure.value for figure in finding.evidence])
    for mod in mods_of(found):
        assert mod in {finding.mod for finding in found}


@given(DOINGS, st.sampled_from([None, FACTS]), st.sampled_from([1, 2]))
def test_rules_hold_whatever_a_step_does(tmp_path_factory, doings, facts, workers):
    made = evidence(tmp_path_factory.mktemp("run"), lambda m: play(m, doings), facts=facts, workers=workers)
    check(find_all(made))


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=30),
        min_size=1,
        max_size=3,
    )
)
def test_rules_hold_whatever_the_step_record_says(tmp_path_factory, ranks):
    steps = [
        [
            step(k, a + b + c, data=a, communication=b, evaluation=c, split=split)
            for k, (a, b, c, split) in enumerate(mine, 1)
        ]
        for mine in ranks
    ]
    check(find_all(evidence(tmp_path_factory.mktemp("run"), steps=steps, facts=FACTS)))


def test_a_trace_from_elsewhere_is_enough(tmp_path):
    evidence(tmp_path, lambda m: (products(m), reading(m)))
    found = find_all(Evidence(read_files([tmp_path / "trace.rank0.json.gz"])))
    check(found, known=False)
    assert {"mixed_precision", "tf32", "waiting_lines"} <= {finding.rule for finding in found}


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]"])
def test_an_empty_trace_says_nothing(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert find_all(Evidence(read_files([path]))) == []


def test_a_record_keeps_its_findings(tmp_path):
    evidence(tmp_path, lambda m: (products(m), reading(m)), facts=FACTS)
    found = findings(tmp_path)
    assert found
    assert read_findings(tmp_path) == found
    assert read_findings(tmp_path / "elsewhere") == []
    (tmp_path / "findings.json").write_text("{")
    with pytest.raises(RecordError):
        read_findings(tmp_path)


def test_damaged_facts_are_done_without(tmp_path):
    evidence(tmp_path, products, facts=FACTS)
    (tmp_path / "facts.rank0.json").write_text('{"threads": "many"}')
    check(findings(tmp_path))


def test_tune_may_begin_with_the_mods_of_findings():
    def of(mod: str, gain: float | None) -> Finding:
        return Finding(rule="r", title="t", evidence=[], advice="a", mod=mod, predicted_gain=gain)

    found = [of("tf32", 1.1), of("", 9.0), of("loader=2", 1.3), of("loader=4", 1.2), of("resident", None)]
    assert mods_of(found) == ["loader=2", "tf32", "resident"]


def test_every_rule_says_what_fixes_it_and_how_it_predicts():
    assert len({rule.name for rule in RULES}) == len(RULES) >= 23
    for rule in RULES:
        assert "Fixed by" in rule.about, rule.name
        assert "Predicted" in rule.about, rule.name


def test_every_threshold_has_its_reason():
    for module in MODULES:
        for name, _, reason in thresholds(module):
            assert reason, f"{module.__name__}: {name}"


def test_every_rule_has_a_file_of_its_own_and_is_listed():
    folder = ROOT / "src" / "paceline" / "advise" / "rules"
    with_rule = {path.stem for path in folder.glob("*.py") if "\ndef find(evidence" in path.read_text()}
    assert with_rule == {rule.name for rule in RULES}


def test_the_page_about_the_rules_is_up_to_date():
    told = (ROOT / "docs" / "advice.md").read_text()
    assert told == page(), "make it anew: python -m paceline.advise.book > docs/advice.md"


def test_a_step_is_as_long_as_those_before_the_trace(tmp_path: Path) -> None:
    """The profiler makes steps slower, and in a short run traced ones are most of those after the warm-up."""
    slow, usual, traced, written = [3.0, 0.5], [0.010] * 6, [0.025] * 4, 2.0
    steps = [step(number, seconds) for number, seconds in enumerate([*slow, *usual, *traced, written], 1)]
    steps = [msgspec.structs.replace(made, traced=made.step > 8) for made in steps]
    for made in (steps, steps[:-1]):  # after the trace the script goes on, or ends
        found = evidence(tmp_path / str(len(made)), small, steps=[made], first=10)
        assert found.settled["step"].to_list() == [3, 4, 5, 6, 7, 8]
        assert found.step == pytest.approx(0.010)
