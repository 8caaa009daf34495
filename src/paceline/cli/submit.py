"""`paceline submit`: writes a job for a scheduler, of a run or of another verb, and submits it."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options
from paceline.cli.help import verb
from paceline.cli.session import Session
from paceline.errors import LaunchError, UsageError
from paceline.launch.cluster.jobs.batch_script import Job, batch_script
from paceline.launch.cluster.jobs.manifest import KubernetesJob, documents, text_of

SLURM, KUBERNETES = "Slurm", "Kubernetes"
VERBS = ("run", "scale", "sweep", "tune", "converge", "profile", "bandwidth", "topo")  # that use several hosts

Slurm = Annotated[bool, typer.Option("--slurm", help="Submit a batch job to Slurm.", rich_help_panel=SLURM)]
Nodes = Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Number of hosts.")]
PerNode = Annotated[int, typer.Option("--workers-per-node", metavar="N", min=1, help="Number of workers on each host.")]
Gpus = Annotated[
    int,
    typer.Option(
        "--gpus-per-node", metavar="N", min=0, help="Number of GPUs on each host.", show_default="no GPUs are asked for"
    ),
]
Script = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT|VERB",
        help="Training script, or a verb and its own words: scale -n 2,4 train.py.",
        show_default=False,
    ),
]
RunOptions = Annotated[
    str,
    typer.Option(
        "--run-options",
        metavar="TEXT",
        help="Options of `paceline run`, with a SCRIPT: '--strategy zero1 --mod precision=bf16'.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the job.", show_default="the script's")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the job, and submit nothing.")]
Time = Annotated[
    str,
    typer.Option("--time", metavar="TIME", help="Time limit: 2:00:00.", show_default=False, rich_help_panel=SLURM),
]
Partition = Annotated[
    str,
    typer.Option("--partition", metavar="NAME", help="Partition.", show_default=False, rich_help_panel=SLURM),
]
Account = Annotated[
    str,
    typer.Option("--account", metavar="NAME", help="Account to charge.", show_default=False, rich_help_panel=SLURM),
]
Container = Annotated[
    str,
    typer.Option(
        "--container",
        metavar="IMAGE",
        help="Container image with Paceline and torch to run in, on clusters with pyxis. It sees the current folder.",
        show_default=False,
        rich_help_panel=SLURM,
    ),
]
Warning = Annotated[
    int,
    typer.Option(
        "--warn-before",
        metavar="SECONDS",
        min=1,
        help="Time between SIGUSR1, which is passed on to the script, and the time limit.",
        rich_help_panel=SLURM,
    ),
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option(
        "--sbatch",
        metavar="OPTION",
        help="Another option of sbatch: --sbatch=--qos=high. May be repeated.",
        show_default=False,
        rich_help_panel=SLURM,
    ),
]
Kubernetes = Annotated[
    bool, typer.Option("--kubernetes", help="Create an Indexed Job in Kubernetes.", rich_help_panel=KUBERNETES)
]
Kubeflow = Annotated[
    bool,
    typer.Option("--kubeflow", help="With --kubernetes: a PyTorchJob of Kubeflow instead.", rich_help_panel=KUBERNETES),
]
Image = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="Container image with Paceline, torch and the script.",
        show_default=False,
        rich_help_panel=KUBERNETES,
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", metavar="NAME", help="Namespace.", show_default="kubectl's", rich_help_panel=KUBERNETES
    ),
]
Workdir = Annotated[
    str,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Folder in the image where the script is run.",
        show_default="the image's own",
        rich_help_panel=KUBERNETES,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command(
        "submit",
        cls=verb(
            "paceline submit --slurm --nodes 2 --workers-per-node 4 --time 2:00:00 train.py --epochs 3",
            "paceline submit --slurm --nodes 2 --workers-per-node 4 --account physics scale -n 2,4,8 train.py",
            "paceline submit --kubernetes --image registry/train:1 --nodes 2 --gpus-per-node 8 train.py",
        ),
        context_settings=options.SCRIPT_LAST,
    )(submit)


def submit(
    context: typer.Context,
    script: Script,
    arguments: options.Arguments = None,
    module: options.Module = False,
    nodes: Nodes = 1,
    workers_per_node: PerNode = 1,
    gpus_per_node: Gpus = 0,
    run_options: RunOptions = "",
    name: Name = "",
    dry_run: DryRun = False,
    slurm: Slurm = False,
    time: Time = "",
    partition: Partition = "",
    account: Account = "",
    container: Container = "",
    warn_before: Warning = 120,
    sbatch: Sbatch = None,
    kubernetes: Kubernetes = False,
    kubeflow: Kubeflow = False,
    image: Image = "",
    namespace: Namespace = "",
    workdir: Workdir = "",
    json: options.Json = False,
) -> None:
    session = Session.of(context, json=json)
    if slurm == (kubernetes or kubeflow):
        raise UsageError(
            "paceline submit needs one scheduler: --slurm or --kubernetes.",
            advice="Type: paceline submit --slurm train.py",
        )
    is_verb = script in VERBS and not module and not Path(script).is_file()
    if is_verb and run_options:
        raise UsageError(
            f"--run-options {run_options}: the words after {script} are its options already.",
            advice=f"Type: paceline submit … {script} {run_options} …",
        )
    words = [*split(run_options), *(["-m"] if module else []), script, *options.own_arguments(arguments)]
    run = [script, *(arguments or ())] if is_verb else ["run", *words]
    named = next((word for word in run[1:] if word.endswith(".py")), script)
    name = name or (f"{script}-{name_of(named)}"[:40] if is_verb and named != script else name_of(script))
    total = nodes * max(workers_per_node, gpus_per_node)
    if not slurm:
        if not image:
            raise UsageError(
                "paceline submit --kubernetes needs a container image.", advice="Type: --image registry/train:1"
            )
        # The script is in the image, so it is not looked for here.
        pods = KubernetesJob(
            name=name,
            image=image,
            run=counted(run, total),
            nodes=nodes,
            secret=secrets.token_urlsafe(32),
            gpus_per_node=gpus_per_node,
            namespace=namespace,
            folder=workdir,
            kubeflow=kubeflow,
        )
        _submit(session, text_of(documents(pods)), ["kubectl", "create", "-f", "-"], dry_run=dry_run, json=json)
        return
    if not is_verb and not module and not Path(script).is_file():
        raise UsageError(
            f"The script {script!r} cannot be run: there is no such file (searched from {os.getcwd()}).",
            advice="Type the path of a Python file, or a module's name after -m.",
        )
    job = Job(
        name=name,
        command=["paceline", *counted(run, total)] if container else [sys.executable, "-m", "paceline", *run],
        folder=os.getcwd(),
        nodes=nodes,
        workers_per_node=workers_per_node,
        gpus_per_node=gpus_per_node,
        time=time,
        partition=partition,
        account=account,
        container=container,
        warning=warn_before,
        more=sbatch or (),
    )
    _submit(session, batch_script(job), ["sbatch"], dry_run=dry_run, json=json)


def _submit(session: Session, text: str, command: Sequence[str], *, dry_run: bool, json: bool) -> None:
    said = "" if dry_run else submitted(command, text)
    if json:
        session.print_document({"job": text, "submitted": not dry_run, "said": said})
    else:
        print(text if dry_run else said, end="")


def counted(run: Sequence[str], total: int) -> list[str]:
    """A verb and its words, with the number of workers on all hosts unless it was typed."""
    verb, *words = run
    own = itertools.takewhile(lambda word: not word.endswith(".py"), words)  # those after the script are the script's
    typed = any(word.partition("=")[0] == "--workers" or re.match(r"-n\d*(,|$)", word) for word in own)
    if typed or verb == "topo":
        return [*run]
    numbers = [*(2**k for k in range(total.bit_length()) if 2**k < total), total] if verb == "scale" else [total]
    return [verb, "-n", ",".join(map(str, numbers)), *words]


def split(typed: str) -> list[str]:
    """The words of --run-options."""
    try:
        return shlex.split(typed)
    except ValueError as error:
        raise UsageError(f"--run-options {typed}: {error}.", advice="Close every quote.") from None


def name_of(script: str) -> str:
    """A name for a job that every scheduler takes: small letters, digits and dashes."""
    stem = script.rpartition("/")[2].removesuffix(".py").rpartition(".")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40] or "paceline"


def submitted(command: Sequence[str], text: str) -> str:
    """Gives the text to a scheduler's program; returns what the program says."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]} is not installed here, so the job was not submitted.",
            advice="Type the command where jobs are submitted, or print the job: --dry-run",
        ) from None
    if done.returncode:
        raise LaunchError(
            f"{command[0]} refused the job: {done.stderr.strip() or done.returncode}",
            advice="Look at the job: --dry-run",
        )
    return done.stdout
