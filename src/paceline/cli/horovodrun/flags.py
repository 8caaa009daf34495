"""The flags of `horovodrun`, and what becomes of each: an environment variable of the workers, an option of `paceline
run`, or nothing. `read` takes a command line apart; it knows no more of a flag than this table."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.errors import UsageError

Part = Literal["run", "tuning", "no effect", "missing"]
PARTS: dict[Part, str] = {
    "run": "Processes, hosts and output",
    "tuning": "Set HOROVOD_… variables of the workers (so far without effect: hierarchical, torus, samples of the "
    "tuning, Gloo's time limit, streams, affinity, log level)",
    "no effect": "Accepted, without effect",
    "missing": "Not supported yet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """`takes` turns the typed value into what is kept, None: the flag is a switch and has the value `value`. `variable`
    is set in the workers, to the value in words of `text`."""

    names: tuple[str, ...]
    help: str = ""
    part: Part = "run"
    key: str = ""  # under which the value is kept; by default the last name
    takes: Callable[[str], Any] | None = None
    value: Any = True
    variable: str = ""
    text: Callable[[Any], str] = str

    @property
    def kept_as(self) -> str:
        return self.key or self.names[-1].lstrip("-").replace("-", "_")


def _at_least_0(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError
    return number


def _at_least_1(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _time(text: str) -> float:
    if not (number := float(text)) >= 0:
        raise ValueError
    return number


def _share(text: str) -> float:
    if not 0 <= (number := float(text)) <= 1:
        raise ValueError
    return number


def _level(text: str) -> str:
    if text.upper() not in ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"):
        raise ValueError
    return text.upper()


def _one(value: bool) -> str:
    return "1" if value else "0"


def _tuning(name: str, variable: str, takes: Callable[[str], Any], help: str, **more: Any) -> Flag:
    return Flag(names=(name,), part="tuning", takes=takes, variable=variable, help=help, **more)


def _switches(name: str, variable: str, help: str) -> tuple[Flag, Flag]:
    key = name.lstrip("-").replace("-", "_")
    return (
        Flag(names=(name,), key=key, part="tuning", variable=variable, text=_one, help=help),
        Flag(names=(f"--no-{name[2:]}",), key=key, part="tuning", value=False, variable=variable, text=_one),
    )


def _without_effect(*names: str, takes: Callable[[str], Any] | None = None) -> Flag:
    return Flag(names=names, part="no effect", takes=takes)


FLAGS = (
    Flag(names=("-h", "--help"), help="Show this text and exit."),
    Flag(names=("-v", "--version"), help="Show the version and exit."),
    Flag(names=("-np", "--num-proc"), takes=_at_least_1, help="Number of processes."),
    Flag(names=("-cb", "--check-build"), help="Show what is available and exit."),
    Flag(names=("-H", "--hosts"), takes=str, help="Hosts and their slots: a:4,b:4."),
    Flag(names=("-hostfile", "--hostfile"), takes=str, help="The same from a file, one `a slots=4` a line."),
    Flag(names=("-p", "--ssh-port"), takes=_at_least_1, help="Port of ssh on the hosts."),
    Flag(names=("-i", "--ssh-identity-file"), takes=str, help="Private key for ssh."),
    Flag(names=("--network-interface", "--network-interfaces"), takes=str, help="Network interface between the hosts."),
    Flag(names=("--output-filename",), takes=str, help="Folder for each process's output: rank.R/stdout."),
    Flag(names=("--config-file",), takes=str, help="YAML file with the values of these flags."),
    Flag(names=("--quiet",), help="Show the script's output and problems only (Paceline's own flag)."),
    Flag(names=("--verbose",), help="Show the command `paceline run …` that is run."),
    _tuning(
        "--fusion-threshold-mb",
        "HOROVOD_FUSION_THRESHOLD",
        _at_least_0,
        "Largest fusion buffer in MB; 0: no fusion.",
        text=lambda megabytes: str(int(megabytes) << 20),
    ),
    _tuning("--cycle-time-ms", "HOROVOD_CYCLE_TIME", _time, "Time between two rounds of negotiation."),
    _tuning("--cache-capacity", "HOROVOD_CACHE_CAPACITY", _at_least_0, "Tensors whose negotiation is cached."),
    *_switches("--hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", "Within hosts first."),
    *_switches("--hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", "Within hosts first."),
    *_switches("--torus-allreduce", "HOROVOD_TORUS_ALLREDUCE", "Within hosts first."),
    *_switches("--autotune", "HOROVOD_AUTOTUNE", "Tune fusion threshold and cycle time in the first steps."),
    _tuning("--autotune-log-file", "HOROVOD_AUTOTUNE_LOG", str, "File for the figures of the tuning."),
    _tuning("--autotune-warmup-samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", _at_least_0, "Samples left out."),
    _tuning("--autotune-steps-per-sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", _at_least_1, "Steps of a sample."),
    _tuning("--autotune-bayes-opt-max-samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", _at_least_0, "Most samples."),
    _tuning("--autotune-gaussian-process-noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", _share, "Noise, 0 to 1."),
    _tuning("--timeline-filename", "HOROVOD_TIMELINE", str, "File for a timeline, for Perfetto."),
    *_switches("--timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "Mark each cycle in the timeline."),
    Flag(
        names=("--no-stall-check",),
        part="tuning",
        variable="HOROVOD_STALL_CHECK_DISABLE",
        text=_one,
        help="Do not report tensors that some processes never submit.",
    ),
    Flag(
        names=("--stall-check",),
        part="tuning",
        key="no_stall_check",
        value=False,
        variable="HOROVOD_STALL_CHECK_DISABLE",
        text=_one,
    ),
    _tuning(
        "--stall-check-warning-time-seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _at_least_0,
        "Waiting time before that report.",
    ),
    _tuning(
        "--stall-check-shutdown-time-seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _at_least_0,
        "Waiting time before a stalled run is ended; 0: never.",
    ),
    _tuning("--gloo-timeout-seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS", _at_least_0, "Time limit of Gloo's operations."),
    _tuning("--num-nccl-streams", "HOROVOD_NUM_NCCL_STREAMS", _at_least_0, "Streams of NCCL."),
    _tuning("--thread-affinity", "HOROVOD_THREAD_AFFINITY", _at_least_0, "Core of the background thread."),
    _tuning("--log-level", "HOROVOD_LOG_LEVEL", _level, "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL."),
    *(_without_effect(name) for name in ("--gloo", "--mpi", "--jsrun", "--tcp", "--disable-cache")),
    *(_without_effect(name) for name in ("--mpi-threads-disable", "--no-mpi-threads-disable")),
    *(_without_effect(name) for name in ("--log-with-timestamp", "--log-without-timestamp", "--log-hide-timestamp")),
    _without_effect("--no-log-hide-timestamp"),
    _without_effect("-prefix-timestamp", "--prefix-output-with-timestamp"),
    _without_effect("--start-timeout", takes=_at_least_0),
    _without_effect("--mpi-args", takes=str),
    _without_effect("--binding-args", takes=str),
    Flag(
        names=("--min-np", "--min-num-proc"),
        takes=_at_least_1,
        help="Go on without processes that are killed, as long as so many are left.",
    ),
    Flag(
        names=("--max-np", "--max-num-proc"),
        takes=_at_least_1,
        help="Replace processes that were killed at the next commit. The run starts with as many.",
    ),
    Flag(
        names=("--host-discovery-script",),
        takes=str,
        help="A program that prints the hosts that there are now, one on a line: a:4. Needs --min-np and --max-np.",
    ),
    *(
        Flag(names=names, part="missing")
        for names in (
            ("--slots", "--slots-per-host"),
            ("--elastic-timeout",),
            ("--reset-limit",),
            ("--blacklist-cooldown-range",),
        )
    ),
)
BY_NAME: Mapping[str, Flag] = {name: flag for flag in FLAGS for name in flag.names}


@dataclass(slots=True)
class Read:
    """A command line, taken apart: the flags' values, the variables for the workers, and the command after them."""

    values: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)

    def take(self, name: str, flag: Flag, typed: str | None) -> None:
        """Keeps what was typed after the flag; UsageError if that is not a value of it."""
        value = flag.value
        if flag.takes is not None:
            try:
                value = flag.takes(typed or "")
            except ValueError:
                wrong = f"paceline-horovodrun {name} {typed}: {typed!r} is not a value of this flag."
                raise UsageError(wrong, advice=f"{name}: {flag.help} {_HINT}") from None
        self.values[flag.kept_as] = value
        if flag.variable:
            self.variables[flag.variable] = flag.text(value)


_HINT = "For all flags, type: paceline-horovodrun --help"


def read(arguments: Sequence[str]) -> Read:
    """Reads flags up to the first word that is none: there the command begins. UsageError for an unknown flag, with the
    nearest known one."""
    found, words = Read(), list(arguments)
    while words and words[0].startswith("-") and words[0] != "--":
        name, sign, typed = words.pop(0).partition("=")
        flag = BY_NAME.get(name)
        if flag is None:
            close = difflib.get_close_matches(name, BY_NAME, n=1)
            hint = f"Did you mean {close[0]}? {_HINT}" if close else _HINT
            raise UsageError(f"paceline-horovodrun {name}: there is no such flag.", advice=hint)
        if flag.part == "missing":
            raise UsageError(
                f"paceline-horovodrun {name}: elastic runs have no such flag here.", advice=f"Leave {name} out."
            )
        if flag.takes is None and sign:
            raise UsageError(
                f"paceline-horovodrun {name} takes no value, and was given {typed!r}.", advice=f"Type: {name}"
            )
        if flag.takes is not None and not sign:
            if not words:
                raise UsageError(f"paceline-horovodrun {name} needs a value.", advice=f"{name}: {flag.help} {_HINT}")
            typed = words.pop(0)
        found.take(name, flag, typed)
    found.command = words[1:] if words[:1] == ["--"] else words
    return found


def help_text() -> str:
    """What `paceline-horovodrun --help` prints."""
    lines = [
        "paceline-horovodrun -np 4 python train.py --epochs 3",
        "",
        "Runs a Horovod script on 4 processes with Paceline: paceline run -n 4 --as horovod train.py --epochs 3",
    ]
    for part, title in PARTS.items():
        lines += ["", f"{title}:"]
        shown = [flag for flag in FLAGS if flag.part == part and (flag.help or part not in ("run", "tuning"))]
        if shown and not shown[0].help:
            lines.append("  " + "\n  ".join(", ".join(flag.names) for flag in shown))
        else:
            lines += [f"  {', '.join(flag.names):<42} {flag.help}" for flag in shown]
    return "\n".join(lines)


# -- --config-file ----------------------------------------------------------------------------------------------------


# What stands before a key of each section in the flag's name.
SECTIONS = {
    "params": "",
    "autotune": "autotune-",
    "timeline": "timeline-",
    "stall_check": "stall-check-",
    "library_options": "",
    "logging": "log-",
}
ENABLED = {"autotune": "--autotune", "stall_check": "--stall-check"}
NOT_ENABLED = {"autotune": "--no-autotune", "stall_check": "--no-stall-check"}


def read_config(path: str, into: Read) -> None:
    """Adds the values of the file. UsageError if it cannot be read, or for a key that is no flag."""
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"--config-file {path}: YAML files need the package PyYAML, which is not installed.",
            advice="Type: pip install pyyaml",
        ) from None
    try:
        told = yaml.safe_load(Path(path).read_text()) or {}
    except OSError as error:
        raise UsageError(
            f"--config-file {path} cannot be read: {error.strerror}.", advice="Type the path of a YAML file."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong(path, f"it is no YAML: {error}") from None
    if not isinstance(told, dict):
        raise _wrong(path, "it has no sections")
    for section, values in told.items():
        if section == "controller":
            continue  # gloo or mpi: both are accepted, without effect
        if section not in SECTIONS or not isinstance(values, dict):
            raise _wrong(path, f"{section!r} is not a section of it")
        for key, value in values.items():
            if value is not None:
                _take(path, section, str(key), value, into)


def _take(path: str, section: str, key: str, value: Any, into: Read) -> None:
    name = f"--{SECTIONS[section]}{key.replace('_', '-')}"
    if key == "enabled" and section in ENABLED:
        name = (ENABLED if value else NOT_ENABLED)[section]
    elif isinstance(value, bool) and not value and f"--no-{name[2:]}" in BY_NAME:
        name = f"--no-{name[2:]}"
    flag = BY_NAME.get(name)
    if flag is None:
        raise _wrong(path, f"{section}: {key} is not a value of it")
    into.take(name, flag, str(value))


def _wrong(path: str, why: str) -> UsageError:
    return UsageError(
        f"--config-file {path}: {why}.",
        advice=f"Sections: {', '.join(SECTIONS)}; their keys are flags, with _ for -: see paceline-horovodrun --help",
    )
