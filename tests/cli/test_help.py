"""Help, version, completion, and what the process imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from paceline import __version__

VERBS = (
    "run",
    "submit",
    "profile",
    "scale",
    "sweep",
    "fit",
    "tune",
    "converge",
    "topo",
    "bandwidth",
    "doctor",
    "demo",
    "plan",
)


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS)])
def test_help_begins_with_an_example(paceline_, verb):
    code, out, _ = paceline_(*verb, "--help")
    assert code == 0
    first = out.strip().splitlines()[0]
    assert first.startswith("Example: paceline")
    assert out.index("Example") < out.index("Usage")


def test_version(paceline_):
    assert paceline_("--version") == (0, f"{__version__}\n", "")


def test_a_process_reads_the_verbs_once(paceline_, monkeypatch):
    assert paceline_("mods")[0] == 0
    monkeypatch.setattr("typer.main.get_command", None)
    assert paceline_("mods")[0] == 0


def test_python_m_paceline_and_no_torch_in_this_process():
    code = (
        "import runpy, sys\n"
        "sys.argv = ['paceline', '--version']\n"
        "try: runpy.run_module('paceline', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules, sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == __version__


@pytest.mark.parametrize(
    ("typed", "unused"),
    [
        # Each of these takes as long to import as a third of the help.
        (["--help"], "numpy zmq asyncio rich.markdown rich.traceback paceline.cli.run paceline.launch.local"),
        (["--help"], "paceline.record paceline.settings msgspec hashlib"),
        (["mods"], "numpy zmq asyncio paceline.cli.run paceline.launch.local"),
        (["run", "--help"], "numpy polars paceline.cli.scale"),
    ],
)
def test_a_command_imports_only_what_it_needs(typed, unused):
    code = (
        "import sys\n"
        "from paceline.__main__ import main\n"
        f"assert main({typed}) == 0\n"
        f"assert not {{*{unused.split()}}} & sys.modules.keys(), {{*{unused.split()}}} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_what_help_left_out_can_still_be_imported():
    code = (
        "from paceline.__main__ import main\n"
        "main(['--help'])\n"
        "from rich.markdown import Markdown\n"
        "from rich.traceback import Traceback\n"
        "assert Markdown('*a*').parsed and Traceback.extract\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_completion_knows_the_verbs():
    done = subprocess.run(
        [sys.executable, "-m", "paceline"],
        env={"_PACELINE_COMPLETE": "complete_bash", "COMP_WORDS": "paceline sc", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.strip() == "scale"


@pytest.mark.parametrize("verb", [[], ["runs"], ["view"], *([verb] for verb in VERBS)])
def test_help_shows_no_types_of_python(paceline_, verb):
    _, out, _ = paceline_(*verb, "--help")
    assert not re.search(r"<\w+(\[\w+\])?>", out)


def test_help_of_run_leaves_rare_options_to_help_all(paceline_, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, short, _ = paceline_("run", "--help")
    code, whole, _ = paceline_("run", "--help-all")
    assert code == 0
    assert len(short.splitlines()) <= 100, "two screens"
    assert "--help-all" in short
    for rare in ("--stall-warning", "--elastic", "--tag", "--gather-below"):
        assert rare not in short
        assert rare in whole
    assert paceline_("run", "--help")[1] == short, "nothing stays hidden or shown"
    assert "none|bf16|fp16" in whole.replace("\n", "")
