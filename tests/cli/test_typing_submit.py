"""What `paceline submit` makes of what was typed."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "Train_It.py").touch()
    return tmp_path


def test_a_dry_run_prints_the_batch_script(paceline_, here):
    code, out, err = paceline_(
        "submit",
        "--slurm",
        "--nodes",
        "2",
        "--run-options",
        "--strategy zero1",
        "--dry-run",
        "Train_It.py",
        "--nodes",
        "9",
    )
    assert (code, err) == (0, "")
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=train-it\n#SBATCH --nodes=2\n")
    assert "-m paceline run --strategy zero1 Train_It.py --nodes 9 &" in out
    assert f"cd {here} || exit" in out


def test_the_script_is_given_to_sbatch(paceline_, here):
    (here / "sbatch").write_text('#!/bin/sh\nread first; echo "Submitted $first"\n')
    (here / "sbatch").chmod(0o700)
    code, out, _ = paceline_("submit", "--slurm", "--json", "Train_It.py")
    assert code == 0
    assert json.loads(out)["said"] == "Submitted #!/bin/bash\n"


def test_a_dry_run_prints_the_objects_of_kubernetes(paceline_):
    line = ["--kubernetes", "--image", "r/i:1", "--nodes", "3", "--gpus-per-node", "4", "--workdir", "/w", "--dry-run"]
    code, out, err = paceline_("submit", *line, "train.py", "--name=yes", "no")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("kind")] == [
        "kind: Secret",
        "kind: Service",
        "kind: Job",
    ]
    assert '      - "train-0.train:29500"\n' in out.replace("          - ", "      - ")
    assert '- "--name=yes"' in out
    assert '- "no"' in out
    assert '"nvidia.com/gpu": 4' in out or "nvidia.com/gpu: 4" in out


def test_the_objects_are_given_to_kubectl(paceline_, here):
    (here / "kubectl").write_text('#!/bin/sh\nread first; echo "$* $first"\n')
    (here / "kubectl").chmod(0o700)
    code, out, _ = paceline_("submit", "--kubernetes", "--image", "i", "train.py")
    assert (code, out) == (0, "create -f - apiVersion: v1\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["Train_It.py"], "needs one scheduler"),
        (["--slurm", "--kubernetes", "Train_It.py"], "needs one scheduler"),
        (["--kubernetes", "Train_It.py"], "--image"),
        (["--slurm", "Train.py"], "there is no such file"),
        (["--slurm", "--run-options", "'", "Train_It.py"], "--run-options"),
    ],
)
def test_mistakes_are_told_of(paceline_, line, told):
    code, _, err = paceline_("submit", *line)
    assert code == 2
    assert told in err


def test_a_missing_sbatch_is_told_of(paceline_):
    code, _, err = paceline_("submit", "--slurm", "Train_It.py")
    assert code == 1
    assert "sbatch is not installed here" in err
