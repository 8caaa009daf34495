"""The command of a finding: complete, checked against what the record knows, and honest about the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.advise.commands import complete, to_type
from paceline.advise.finding import Finding
from paceline.launch import Zygote, launch
from paceline.mods.prospects import AUTOCAST, COMPILED, NO_CONVOLUTION, NO_LOADER, no_fused, why_idle
from paceline.record import Run
from paceline.record.facts import Facts, LoaderFacts, read_facts
from paceline.settings import RunSettings

RUN = Run(
    paceline="0",
    verb="profile",
    script="train.py",
    arguments=["--lr", "1e-3 or so"],
    settings={"workers": 2, "threads": 1},
    mods=["tf32", "loader=2"],
)
SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
model.compile(backend="eager")
optimizer = torch.optim.Rprop(model.parameters())
for _ in range(6):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def finding(mod: str = "", advice: str = "Do it.", **rest) -> Finding:
    return Finding(rule="toy", title="slow", evidence=[], mod=mod, advice=advice, **rest)


@pytest.mark.parametrize(
    ("mod", "advice", "command", "rest", "numbers"),
    [
        (
            "precision=bf16",
            "paceline run --mod precision=bf16 … — after the warm-up",
            "paceline run -n 2 --threads 1 --mod tf32 --mod loader=2 --mod precision=bf16 train.py --lr '1e-3 or so'",
            "after the warm-up",
            "The numbers change.",
        ),
        (
            "loader=8",
            "paceline run --mod loader=8 …",
            "paceline run -n 2 --threads 1 --mod tf32 --mod loader=8 train.py --lr '1e-3 or so'",
            "",
            "",
        ),
        (
            "workers=4",
            "paceline run -n 4 …",
            "paceline run --threads 1 --mod tf32 --mod loader=2 -n 4 train.py --lr '1e-3 or so'",
            "",
            "The numbers change by rounding.",
        ),
        (
            "",
            "paceline run --backend nccl …",
            "paceline run -n 2 --threads 1 --mod tf32 --mod loader=2 --backend nccl train.py --lr '1e-3 or so'",
            "",
            "",
        ),
        ("", "Save less often.", "", "Save less often.", ""),
    ],
)
def test_a_command_is_complete_and_keeps_the_options_of_the_run(mod, advice, command, rest, numbers):
    made = complete(finding(mod, advice), RUN)
    assert (made.command, made.advice, made.numbers) == (command, rest, numbers)
    assert complete(made, RUN).command == command or not mod


def test_a_mod_replaces_the_option_of_the_same_meaning():
    """`paceline run --threads 1 --mod threads=2` says two things."""
    made = complete(finding("threads=2", "paceline run --mod threads=2 …"), RUN)
    assert made.command.startswith("paceline run -n 2 --mod tf32 --mod loader=2 --mod threads=2 train.py")


def test_a_mod_that_the_script_refuses_is_not_advised():
    """`--mod batch=x2` ended with an error in a script without a DataLoader."""
    without, with_one = Facts(threads=1, steps=9), Facts(threads=1, steps=9, loaders=[LoaderFacts()])
    advice = "paceline run --mod batch=x2 … (about 3 GB)"
    assert "--mod batch=x2" in complete(finding("batch=x2", advice), RUN, with_one).command
    made = complete(finding("batch=x2", advice), RUN, without)
    assert (made.mod, made.command) == ("", "")
    assert made.advice == f"In the script, by hand: what --mod batch=x2 does. The mod itself cannot act: {NO_LOADER}"
    made = complete(finding("loader=4", advice, others=["loader=fast", "tf32"]), RUN, without)
    assert (made.mod, made.others) == ("tf32", [])


def test_a_script_that_distributes_itself_keeps_its_launcher_and_gets_no_mods():
    """`paceline profile -n 2 train_ddp.py` was advised without --as torchrun, and mods that --as refuses."""
    own = Run(
        paceline="0", verb="profile", script="ddp.py", arguments=[], settings={"workers": 2, "launch_as": "torchrun"}
    )
    made = complete(finding("fused_optimizer", "paceline run --mod fused_optimizer …"), own)
    assert (made.mod, made.command) == ("", "")
    assert made.advice.endswith("The mod itself cannot act: the script distributes itself.")
    assert complete(finding("threads=1", "…"), own).command == "paceline run -n 2 --as torchrun --mod threads=1 ddp.py"
    assert to_type(own, "", "Save less often.")[1] == "paceline profile -n 2 --as torchrun ddp.py"


def test_the_facts_of_a_run_say_what_cannot_act(zygote: Zygote, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    settings = RunSettings(script=str(script), threads=1, facts=True)
    outcome = launch(settings, zygote=zygote, record=tmp_path / "record", on_event=lambda event: None)
    assert outcome.exit_code == 0, outcome.message
    facts = read_facts(tmp_path / "record", 0)
    assert facts is not None
    told = {
        "batch=x2": NO_LOADER,
        "precision=bf16": AUTOCAST,
        "precision=fp16": "",
        "compile=default": COMPILED,
        "channels_last": NO_CONVOLUTION,
        "fused_optimizer": no_fused({"Rprop"}),
        "tf32": "",
    }
    assert {mod: why_idle(mod, facts) for mod in told} == told
