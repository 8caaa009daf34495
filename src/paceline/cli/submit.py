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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from paceline.cli.mistakes import Mistyped, explained
from paceline.cli.options import JsonOptions
from paceline.cli.session import Session
from paceline.cli.verb import alone, own_arguments, verb
from paceline.errors import LaunchError, UsageError
from paceline.launch.cluster.jobs.batch_script import Job, batch_script
from paceline.launch.cluster.jobs.manifest import KubernetesJob, documents, text_of
from paceline.options import again, argument, option
from paceline.settings import RunSettings

VERBS = ("run", "scale", "sweep", "tune", "converge", "profile", "bandwidth", "topo")  # that use several hosts

app = alone()


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(JsonOptions):
    PANEL: ClassVar = ""
    script: str = argument("SCRIPT|VERB", "Training script, or a verb and its own words: scale -n 2,4 train.py.")
    arguments: tuple[str, ...] = again(RunSettings, "arguments")
    module: bool = again(RunSettings, "module")
    run_options: str = option(
        "", "Options of `paceline run`, with a SCRIPT: '--strategy zero1 --mod precision=bf16'.", "TEXT"
    )
    dry_run: bool = option(False, "Print the job, and submit nothing.")


@verb(
    app,
    "paceline submit --slurm --nodes 2 --workers-per-node 4 --time 2:00:00 train.py --epochs 3",
    "paceline submit --slurm --nodes 2 --workers-per-node 4 --account physics scale -n 2,4,8 train.py",
    "paceline submit --kubernetes --image registry/train:1 --nodes 2 --gpus-per-node 8 train.py",
)
def submit(session: Session, asked: SubmitOptions, job: Job, pods: KubernetesJob) -> None:
    script, module, run_options = asked.script, asked.module, asked.run_options
    if job.slurm == (pods.kubernetes or pods.kubeflow):
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
    words = [*split(run_options), *(["-m"] if module else []), script, *own_arguments(asked.arguments)]
    run = [script, *asked.arguments] if is_verb else ["run", *words]
    named = next((word for word in run[1:] if word.endswith(".py")), script)
    name = job.name or (f"{script}-{name_of(named)}"[:40] if is_verb and named != script else name_of(script))
    played = script_of(session, run)
    total = job.nodes * max(job.workers_per_node, job.gpus_per_node)
    if not job.slurm:
        if not pods.image:
            raise UsageError(
                "paceline submit --kubernetes needs a container image.", advice="Type: --image registry/train:1"
            )
        # The script is in the image, so it is not looked for here.
        pods = replace(
            pods,
            name=name,
            run=counted(run, total),
            secret=secrets.token_urlsafe(32),
            nodes=job.nodes,
            gpus_per_node=job.gpus_per_node,
        )
        _submit(session, text_of(documents(pods)), ["kubectl", "create", "-f", "-"], dry_run=asked.dry_run)
        return
    if played and not Path(played).is_file():
        raise UsageError(
            f"The script {played!r} cannot be run: there is no such file (searched from {os.getcwd()}).",
            advice="Type the path of a Python file, or a module's name after -m.",
        )
    in_image = ["paceline", *counted(run, total)]
    command = in_image if job.container else [sys.executable, "-m", "paceline", *run]
    job = replace(job, name=name, command=command, folder=os.getcwd())
    _submit(session, batch_script(job), ["sbatch"], dry_run=asked.dry_run)


def script_of(session: Session, run: Sequence[str]) -> str:
    """The script that a verb and its words run; empty if it is a module, or if there is none. Reads them as the job
    will, so that a mistake is told now and not when the job has waited in the queue: raises as that command would."""
    program = session.context.parent.command
    command = program.commands[run[0]]
    alone = Session(verb=run[0], typed=tuple(run), reads_only=True)
    try:
        with command.make_context(run[0], [*run[1:]], parent=session.context.parent, obj=alone) as context:
            command.invoke(context)
            return "" if context.params.get("module") else context.params.get("script", "")
    except Mistyped as error:
        raise explained(error, run, program) from None


def _submit(session: Session, text: str, command: Sequence[str], *, dry_run: bool) -> None:
    said = "" if dry_run else submitted(command, text)
    if session.json:
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
            advice="Print the job, and submit nothing: --dry-run"
            + (". List partitions, time limits and nodes: sinfo" if command[0] == "sbatch" else ""),
        )
    return done.stdout
