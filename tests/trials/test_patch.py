"""The code that `tune` would add to a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.mods.catalog import CATALOG
from paceline.trials.tune.patch import by_hand, read, write_patch

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "examples" / f"{name}.py" for name in ("cnn", "resnet18", "gpt", "gan", "accumulate", "by_hand")]
CORPUS = sorted((ROOT / "tests" / "scripts").glob("*.py"))
PATCHABLE = (
    *("cudnn_benchmark", "tf32", "threads=2", "fused_optimizer", "channels_last", "compile=default"),
    *("compile=reduce-overhead", "precision=bf16", "loader=2"),
)

SCRIPT = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

net = nn.Linear(8, 2)
optimizer = optim.SGD(
    net.parameters(),
    lr=0.1,
)
loader = DataLoader(range(10), batch_size=5)
for x in loader:
    out = net(x)
    nn.functional.mse_loss(out, x).backward()
    optimizer.step()
"""


def patched(source: str, *mods: str, cuda: bool = False) -> str:
    """The script with these mods in it, all of them."""
    found = write_patch("train.py", source, mods, cuda=cuda)
    assert found.mods == list(mods)
    assert not found.by_hand
    return found.source


@pytest.mark.parametrize(
    "path",
    [
        *EXAMPLES,
        *(pytest.param(path, marks=[pytest.mark.slow] if number % 6 else []) for number, path in enumerate(CORPUS)),
    ],
    ids=lambda path: path.stem,
)
def test_what_comes_out_compiles_whatever_the_script(path):
    name, source = read(str(path), module=False)
    assert source
    for mods in (PATCHABLE, *((mod,) for mod in PATCHABLE if path in EXAMPLES)):
        found = write_patch(name, source, mods)
        compile(found.source, name, "exec")
        assert sorted([*found.mods, *(one.mod for one in found.by_hand)]) == sorted(mods)
        assert bool(found.diff) == (found.source != source)
        removed = [line[1:] for line in found.diff.splitlines() if line.startswith("-") and not line.startswith("---")]
        assert set(removed) <= set(source.splitlines())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_take_most_mods(path):
    name, source = read(str(path), module=False)
    found = write_patch(name, source, PATCHABLE[:6])
    assert found.mods == list(PATCHABLE[:6])


def test_lines_after_the_imports():
    source = patched(SCRIPT, "tf32", "cudnn_benchmark", "threads=3")
    head = source.split("net = ")[0]
    for line in (
        'torch.set_float32_matmul_precision("high")\n',
        "torch.backends.cudnn.allow_tf32 = True\n",
        "torch.backends.cudnn.benchmark = True\n",
        "torch.set_num_threads(3)\n",
    ):
        assert line in head


def test_a_script_that_does_not_import_torch_by_its_name_is_left_alone():
    source = SCRIPT.replace("import torch\n", "import torch as t\n")
    [left] = write_patch("train.py", source, ["tf32"]).by_hand
    assert left.mod == "tf32"
    assert "set_float32_matmul_precision" in left.lines


def test_keywords_go_into_calls_over_several_lines():
    source = patched(SCRIPT, "fused_optimizer", "loader=4", cuda=True)
    assert "    lr=0.1, fused=True,\n)" in source
    assert "DataLoader(range(10), batch_size=5, num_workers=4, pin_memory=True)" in source
    assert "pin_memory" not in patched(SCRIPT, "loader=4")


@pytest.mark.parametrize(
    ("mod", "old", "new"),
    [
        ("fused_optimizer", "lr=0.1,", "lr=0.1, foreach=True,"),
        ("fused_optimizer", "lr=0.1,", "**options"),
        ("fused_optimizer", "optim.SGD", "make_optimizer"),
        ("fused_optimizer", "optim.SGD", "optim.RMSprop"),
        ("loader=2", "batch_size=5", "num_workers=1"),
        ("loader=2", "(range(10), batch_size=5)", "(*given)"),
        ("precision=bf16", "out = net(x)", "out, other = net(x)"),
        ("precision=bf16", "out = net(x)", "out = net(x)[0]"),
        ("precision=bf16", "out = net(x)", "out = net(x); print(out)"),
        ("precision=bf16", "mse_loss(out, x)", "mse_loss(out.loss, x)"),
        ("precision=bf16", "mse_loss(out, x)", 'mse_loss(out["y"], x)'),
        ("precision=bf16", "mse_loss(out, x)", "mse_loss(net(x), x)"),
        ("channels_last", "net.parameters()", "weights"),
        ("compile=default", "net = nn.Linear(8, 2)", "if x:\n    net = nn.Linear(8, 2)"),
    ],
)
def test_what_is_not_safe_is_shown_and_not_done(mod, old, new):
    assert old in SCRIPT
    found = write_patch("train.py", SCRIPT.replace(old, new), [mod])
    assert found.diff == ""
    assert found.source == SCRIPT.replace(old, new)
    assert found.by_hand[0].lines


def test_the_model_is_changed_where_it_is_made():
    source = patched(SCRIPT, "channels_last", "compile=reduce-overhead")
    head = "net = nn.Linear(8, 2)\n"
    lines = source.split(head)[1].splitlines()[:2]
    assert sorted(lines) == ['net.compile(mode="reduce-overhead")', "net.to(memory_format=torch.channels_last)"]


def test_a_model_that_is_made_elsewhere_is_changed_before_its_optimizer():
    source = (
        "import torch\n\ndef main(model):\n    print(1)\n    if model.training:\n"
        "        optimizer = torch.optim.Adam(model.parameters())\n"
    )
    assert "    print(1)\n    model.compile()\n    if model.training:\n" in patched(source, "compile=default")


def test_the_forward_is_put_under_autocast():
    source = patched(SCRIPT, "precision=bf16")
    body = source.split("for x in loader:\n")[1]
    assert body.startswith(
        "    with torch.autocast(x.device.type, torch.bfloat16):\n        out = net(x)\n    out = out.float()\n"
    )


def test_line_ends_and_letters_of_the_script_stay_its_own():
    source = SCRIPT.replace("net", "réseau").replace("\n", "\r\n")
    changed = patched(source, *PATCHABLE[:6], "precision=bf16", "loader=2")
    assert changed.count("\r\n") == changed.count("\n")
    assert "réseau.compile()" in changed
    assert patched(SCRIPT.rstrip("\n"), "fused_optimizer").endswith("optimizer.step()")


def test_the_patch_is_one_that_can_be_applied(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    found = write_patch("train.py", SCRIPT, PATCHABLE[:6])
    (tmp_path / "tuned.patch").write_text(found.diff)
    command = ["git", "apply", "-p0", "tuned.patch"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train.py").read_text() == found.source


@pytest.mark.parametrize("name", CATALOG)
def test_every_mod_says_how_to_keep_it_by_hand(name):
    assert by_hand(name).strip()
    assert by_hand(f"{name}=2") == by_hand(name)


def test_a_module_is_found_by_its_name():
    path, source = read("json.tool", module=True)
    assert path.endswith("tool.py")
    assert "def main" in source
    assert read("no.such.module", module=True)[1] == ""


@pytest.mark.slow
def test_a_patched_example_trains_the_same(tmp_path):
    """For real: channels last, a fused optimizer and one thread, written into the script."""
    name, source = read(str(EXAMPLES[0]), module=False)
    (tmp_path / "cnn.py").write_text(patched(source, "channels_last", "fused_optimizer", "threads=1"))
    outputs = []
    for script in (name, str(tmp_path / "cnn.py")):
        done = subprocess.run(
            [sys.executable, script, "--epochs=1", "--train-size=320", "--test-size=50", "--batch-size=32"],
            env=os.environ | {"PYTHONPATH": str(ROOT / "examples"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append([float(number) for number in re.findall(r"\d+\.\d+", done.stdout)])
    assert outputs[0]
    assert outputs[1] == pytest.approx(outputs[0], rel=1e-3)
