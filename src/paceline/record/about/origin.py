"""The file `origin.json`: the command that made a record, where it was typed, and in which state the code was.

`changes.diff` beside it holds the changes that were not committed, for `git apply`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder
from paceline.record.private import write_file

FILE = "origin.json"
LARGEST = 4 << 20  # bytes of origin.json
LONGEST = 1000  # characters of a variable's value
MOST_SCRIPT = 16 << 20  # bytes of a script that is hashed

# Variables that change what a run computes, or how fast. By prefix.
MATTERS = (
    *("PACELINE_", "CUDA_", "NCCL_", "GLOO_", "UCX_", "FI_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "ONEDNN_"),
    *("NUMEXPR_", "MALLOC_", "TORCH", "PYTORCH_", "PYTHON", "LD_", "HF_", "TRANSFORMERS_", "HOROVOD_", "KERAS_"),
    *("TF_CONFIG", "TF_CPP_", "TF_XLA_", "TF_GPU_", "TF_NUM_", "TF_ENABLE_", "TF_FORCE_", "TF_DETERMINISTIC_"),
    *("XLA_", "JAX_", "SLURM_JOB", "SLURM_NODE", "VIRTUAL_ENV", "CONDA_DEFAULT_ENV", "CUBLAS_", "CUDNN_", "TRITON_"),
    *("HSA_", "ROCR_", "HIP_"),
)
SECRET = re.compile(r"SECRET|TOKEN|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|AUTH|(^|_)(KEY|KEYS|PWD|PAT)($|_)|APIKEY", re.I)
ACCOUNT = re.compile(r"(://)[^/@\s]+@")  # user and password in an address
HIDDEN = "…"


class Origin(msgspec.Struct, kw_only=True):
    """What made a record. `command` is what was typed, word by word; values of secret variables are left out."""

    command: list[str]
    directory: str
    python: str = ""  # the interpreter
    script_sha256: str = ""  # empty: a module, or not readable
    git: Tree | None = None  # None: not in a git repository, or git is not installed
    packages: dict[str, str] = {}  # all that are installed
    environment: dict[str, str] = {}  # variables that matter
    defaults: dict[str, str] = {}  # options that were not typed: from the project's files or variables, and from which
    resumed: list[list[str]] = []  # commands that went on with this record

    @property
    def line(self) -> str:
        """The command as one line for a shell."""
        return shlex.join(self.command)


def describe(
    command: Sequence[str], environment: Mapping[str, str], *, script: str = "", record: Path
) -> tuple[Origin, bytes]:
    """The origin of a record that is made now, in the current folder, and the changes that were not committed."""
    directory = Path.cwd()
    tree, changes = look(directory, ignoring=record.parent)
    origin = Origin(
        command=without_secrets(command),
        directory=str(directory),
        python=sys.executable,
        script_sha256=_hash(Path(script)),
        git=tree,
        packages=packages(),
        environment=that_matter(environment),
    )
    return origin, changes


def write_origin(folder: Path, origin: Origin, changes: bytes = b"") -> None:
    """OSError if the record cannot be written."""
    if changes:
        write_file(folder / CHANGES, changes)
        os.chmod(folder / CHANGES, 0o600)  # also in a shared record: it is source code
    write_file(folder / FILE, msgspec.json.format(msgspec.json.encode(origin), indent=2) + b"\n")


def add_resumed(folder: Path, command: Sequence[str]) -> None:
    """Notes that another command went on with this record. OSError if the record cannot be written."""
    origin = read_origin(folder)
    if origin is not None:
        origin.resumed.append(without_secrets(command))
        write_origin(folder, origin)


def read_origin(folder: Path | Folder) -> Origin | None:
    """None if the record has no origin.json, such as a trial, or if the file is damaged."""
    try:
        return msgspec.json.decode(Folder.of(folder).file(FILE).read(LARGEST), type=Origin)
    except (OSError, RecordError, msgspec.DecodeError, RecursionError):
        return None


def without_secrets(words: Sequence[str], *, all_variables: bool = False) -> list[str]:
    """The words of a command, with the values of secret variables (`--env API_KEY=…`) and the passwords in addresses
    left out. A script's own arguments stay as typed. `all_variables`: every word is a variable, NAME=VALUE."""
    found: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        head = "--env=" if word.startswith("--env=") else ""
        name, equals, _ = word.removeprefix(head).partition("=")
        if (all_variables or before == "--env" or head) and equals and SECRET.search(name):
            word = f"{head}{name}={HIDDEN}"
        found.append(ACCOUNT.sub(rf"\1{HIDDEN}@", word))
    return found


def hide_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables, with the values of secret ones left out."""
    return {name: HIDDEN if SECRET.search(name) else value for name, value in environment.items()}


def that_matter(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter for a run, without secrets."""
    return {
        name: ACCOUNT.sub(rf"\1{HIDDEN}@", value[:LONGEST])
        for name, value in sorted(environment.items())
        if name.startswith(MATTERS) and not SECRET.search(name)
    }


def packages() -> dict[str, str]:
    """Installed packages and their versions, by the names of their folders: reading their metadata would take long."""
    found: dict[str, str] = {}
    for place in sys.path:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(place or ".")):
                match = re.fullmatch(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", name)
                if match is not None:
                    found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
    return dict(sorted(found.items()))


def _hash(script: Path) -> str:
    try:
        if not script.is_file() or script.stat().st_size > MOST_SCRIPT:
            return ""
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError:
        return ""


# -- git --------------------------------------------------------------------------------------------------------------


CHANGES = "changes.diff"  # in the record
LIMIT = 5.0  # seconds that one call of git may take
MOST = 1 << 20  # bytes of the diff that are kept
MOST_STATUS = 1 << 20  # bytes of the list of changed files that are read
MOST_UNTRACKED = 100  # names of files that git does not know


class Tree(msgspec.Struct, kw_only=True):
    """A repository and its working tree at one moment."""

    root: str
    commit: str = ""  # empty: there is no commit yet
    branch: str = ""  # empty: none, the commit itself is checked out
    dirty: bool | None = None  # files that git knows were changed; None: git took too long
    changed: int = 0  # number of those files
    untracked: list[str] = []  # files and folders that git does not know, the first ones
    diff: str = ""  # the name of the file that holds the changes; empty: there are none
    cut: bool = False  # the diff was too large: its last files are left out


def look(folder: Path, *, ignoring: Path | None = None) -> tuple[Tree | None, bytes]:
    """The repository around this folder, None if there is none, and the changes since its commit. `ignoring`: the
    folder of the records, which is not counted as untracked."""
    found = _git(folder, "rev-parse", "--show-toplevel")
    if not found:
        return None, b""
    tree = Tree(root=_text(found))
    tree.commit = _text(_git(folder, "rev-parse", "--verify", "--quiet", "HEAD"))
    tree.branch = _text(_git(folder, "symbolic-ref", "--short", "--quiet", "HEAD"))
    status = _git(folder, "status", "--porcelain=v1", "-z", "--no-renames", most=MOST_STATUS)
    if status is None:
        return tree, b""
    lines = [line for line in status[:MOST_STATUS].decode(errors="replace").split("\0") if line]
    tree.changed = sum(not line.startswith("??") for line in lines)
    tree.dirty = tree.changed > 0
    names = [line[3:] for line in lines if line.startswith("??")]
    own = None if ignoring is None else ignoring.resolve()
    kept = [name for name in names if own is None or not own.is_relative_to(Path(tree.root, name).resolve())]
    tree.untracked = kept[:MOST_UNTRACKED]
    changes = b""
    if tree.dirty and tree.commit:
        # Neither the user's diff program nor a filter runs.
        words = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
        changes = _git(folder, *words, most=MOST) or b""
        if len(changes) > MOST:
            tree.cut = True
            changes = changes[: max(changes.rfind(b"\ndiff --git ", 0, MOST) + 1, 0)]
        tree.diff = CHANGES if changes else ""
    return tree, changes


def _git(folder: Path, *words: str, most: int = 1 << 16) -> bytes | None:
    """The output of git, at most one byte more than `most`; None if git failed, took too long or is missing."""
    try:
        process = subprocess.Popen(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    timer = threading.Timer(LIMIT, process.kill)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout:
            told = process.stdout.read(most + 1)
        if len(told) > most:
            process.kill()
            process.wait()
            return told
        return told if process.wait() == 0 else None
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()


def _text(told: bytes | None) -> str:
    return (told or b"").decode(errors="replace").strip()
