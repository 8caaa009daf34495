"""What `paceline submit` makes of what was typed."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "Train_It.py").write_text("# Has its own -n and --nodes.")
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


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("scale", "-n", "2,4", "Train_It.py", "-n", "9"), "-m paceline scale -n 2,4 Train_It.py -n 9 &"),
        (("tune", "--budget", "9m", "-m", "package.train"), "-m paceline tune --budget 9m -m package.train &"),
        (("bandwidth", "--quick"), "-m paceline bandwidth --quick &"),
    ],
)
def test_every_verb_can_be_a_job(paceline_, typed, told):
    code, out, err = paceline_("submit", "--slurm", "--nodes", "2", "--account", "physics", "--dry-run", *typed)
    assert (code, err) == (0, "")
    assert told in out
    assert "#SBATCH --account=physics\n" in out
    assert f"#SBATCH --job-name={typed[0]}" in out


def test_in_a_container_the_nodes_meet_at_the_first_one(paceline_, here):
    line = ["--slurm", "--nodes", "2", "--workers-per-node", "4", "--container", "registry/train:1", "--dry-run"]
    code, out, err = paceline_("submit", *line, "scale", "Train_It.py")
    assert (code, err) == (0, "")
    assert (
        "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --overlap --cpu-bind=none --container-image=registry/train:1"
        in out
    )
    assert f"--container-mounts={here}:{here}" in out
    assert 'paceline scale --on local --rendezvous "$first:29500" --nodes 2 -n 1,2,4,8 Train_It.py &' in out
    assert "export PACELINE_SECRET" in out
    code, out, _ = paceline_("submit", "--slurm", "--container", "i", "--dry-run", "Train_It.py")
    assert "--rendezvous" not in out
    assert "paceline run --on local -n 1 Train_It.py &" in out


def test_pods_run_other_verbs_with_the_number_of_all_workers(paceline_):
    line = ["--kubernetes", "--image", "i", "--nodes", "2", "--workers-per-node", "3", "--dry-run"]
    code, out, _ = paceline_("submit", *line, "sweep", "train.py", "-n", "5")
    words = [line.strip().removeprefix("- ") for line in out.splitlines()]
    assert code == 0
    assert words[words.index("train.py") - 2 : words.index("train.py") + 3] == [
        '"-n"',
        '"6"',
        "train.py",
        '"-n"',
        '"5"',
    ]


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
        (["--slurm", "--run-options", "--quiet", "sweep", "Train_It.py"], "its options already"),
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


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("scale", "--nonsense", "Train_It.py"), "--nonsense is not an option of `paceline scale`"),
        (("--run-options", "--nonsense", "Train_It.py"), "--nonsense is not an option of `paceline run`"),
        (("--run-options", "--mod nonsense=3", "Train_It.py"), "there is no mod 'nonsense'"),
        (("scale", "-n", "x", "Train_It.py"), "-n x: not a list of numbers"),
        (("tune",), "paceline tune: SCRIPT is missing"),
        (("sweep", "missing.py"), "The script 'missing.py' cannot be run: there is no such file"),
    ],
)
def test_a_mistake_in_the_words_of_the_verb_is_told_before_the_job_waits_in_the_queue(paceline_, typed, told):
    code, out, err = paceline_("submit", "--slurm", "--nodes", "2", *typed)
    assert (code, out) == (2, "")
    assert told in err


def test_a_stray_option_is_told_before_the_job_waits_in_the_queue(paceline_):
    code, out, err = paceline_("submit", "--slurm", "--dry-run", "Train_It.py", "--threads", "2")
    assert code == 0
    assert "Train_It.py --threads 2 &" in out
    assert "Type: paceline run --threads 2 Train_It.py" in err
