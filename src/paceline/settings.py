"""Settings of a run and of each of its workers.

This is the only module that reads the environment. The launcher sends `WorkerSettings` to each worker as JSON, so a
worker needs no environment variable to know its rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from paceline.options import LASTING, OUTPUT, STALLS, argument, option, read_size

Batch = Literal["keep", "scale"]
Backend = Literal["auto", "gloo", "nccl"]
Compression = Literal["none", "bf16", "fp16", "powersgd"]
TRACKERS = ("wandb", "mlflow")
Launcher = Literal["torchrun", "horovod", "tensorflow", "jax"]

SMALL = 1 << 16

# Set by launchers (torchrun, TensorFlow, JAX, horovodrun): a script that finds one takes its distributed branch.
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "TF_CONFIG",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_HOSTNAME",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
)
# The same of Slurm and of MPI. A worker does not get them either: its script is a single process.
SCHEDULER_VARIABLES = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "MPI_LOCALRANKID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMIX_RANK", "PMIX_NAMESPACE", "MPI_LOCALNRANKS"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """Which steps `paceline profile` traces, and how."""

    PANEL: ClassVar = "Tracing"
    steps: int = option(5, "Number of steps to trace on every worker.", "K", least=1)
    warm_up: int | None = option(
        None, "Number of warm-up steps before the trace.", "K", least=2, usual="until step times are steady"
    )
    stack: bool = option(False, "Record Python stacks: adds time by module, slows traced steps.")
    whole_run: bool = option(False, "Run the script to its end after the trace.", names="--to-the-end --whole-run")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharpnessSettings:
    """How to measure the sharpness of the final weights of a run."""

    samples: int = 1024  # samples taken from the last batches; one whole batch if a batch is larger
    keep: bool = False  # keep the final weights in the record
    line_from: str = ""  # a record that kept its weights: the loss is measured on the line between both


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSettings:
    """Where and when the state of a script (`paceline.Elastic`) is saved, and what it goes on from."""

    folder: str
    seconds: float = 0.0  # between two saves; 0: not by time
    commits: int = 0  # between two saves; 0: not by their number
    resume: str = ""  # the folder of a checkpoint; empty: the script starts from the beginning
    job: str = ""  # the Slurm job that saves


# Exit codes of workers whose state was saved at a commit: the run was told to end (EX_TEMPFAIL), or is to grow.
PREEMPTED, JOINED = 75, 76


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the user asked for: the same on every worker of a run. Each option is declared here, and nowhere else; a
    verb has those that it may use, and `launch` sends their values to the workers."""

    script: str = argument("SCRIPT", "Training script, or with -m the name of a module.")
    arguments: tuple[str, ...] = argument("[ARGUMENTS]...", "The script's own arguments.", default=())
    module: bool = option(False, "Run SCRIPT as a module: -m package.train.", names="-m", panel="")
    workers: int = 1
    batch: Batch = option(
        "keep",
        "keep: split the script's batch among the workers. scale: each worker takes whole batches.",
        verbs=("run",),
        repeated=True,
        excludes=("--as",),
    )
    steps: int | None = option(None, "Stop after K steps.", "K", least=1, usual="the end of the script", verbs=("run",))
    mods: tuple[str, ...] = option(
        (), "Apply a mod; `paceline mods` lists them. May be repeated.", "NAME[=VALUE]", names="--mod"
    )
    compression: Compression = option(
        "none",
        "Compress gradients sent between hosts (results change slightly).",
        verbs=("run",),
        repeated=True,
        excludes=("--as", "--elastic"),
    )
    autotune: bool = option(
        True, "Do not tune the gradient bucket size in the first steps.", names="--no-autotune", verbs=("run",)
    )
    noise_scale: bool = option(
        False,
        "Measure the gradient noise scale, which estimates the largest useful batch. Needs 2 workers or micro-batches.",
        verbs=("run",),
        rare=True,
        excludes=("--as", "--elastic"),
    )
    strategy: str = option(
        "mirrored", "How the workers share the work.", "NAME[(ARGUMENT=VALUE,…)]", repeated=True, excludes=("--as",)
    )
    batch_dim: int = option(
        0, "Tensor dimension that counts samples.", "N", least=0, rare=True, repeated=True, excludes=("--as",)
    )
    whole: tuple[str, ...] = option(
        (),
        "Never split this module (class name or attribute path). May be repeated.",
        "MODULE",
        repeated=True,
        excludes=("--as",),
    )
    gather_below: int = option(
        SMALL,
        "Gather a model's outputs below this size at once; larger ones stay sharded. Numbers do not depend on it.",
        "BYTES",
        least=0,
        rare=True,
        repeated=True,
    )
    threads: int | None = option(
        None, "CPU threads per worker.", "N", least=1, usual="an equal share of the cores", repeated=True
    )
    backend: Backend = option("auto", "Communication backend of the workers.", repeated=True, excludes=("--elastic",))
    # Of torch's, numpy's and Python's random streams. Without one, each command draws its own.
    seed: int = option(
        0, "Initial random seed; the script may set its own.", "N", usual="a new seed, kept in the record"
    )
    seed_shift: int = 0  # added to `seed`, and to every seed that the script sets
    launch_as: Launcher | None = option(
        None,
        "Run a script that distributes itself, with this launcher's environment variables. Paceline splits nothing.",
        names="--as",
        verbs=("run", "profile"),
        repeated=True,
    )
    environment: tuple[str, ...] = option(
        (),
        "Set an environment variable of the workers. May be repeated.",
        "NAME=VALUE",
        names="--env",
        verbs=("run", "profile"),
    )
    track: tuple[str, ...] = option(
        (),
        "Log each step's metrics to the script's run of this tracker, or to a run of its own. Repeatable.",
        "|".join(TRACKERS),
        panel=OUTPUT,
        verbs=("run",),
    )
    share_record: bool = option(False, "Let other accounts read the record.", panel=OUTPUT)
    restarts: int = option(
        0,
        "If the run fails, start it again from the last save, up to K times.",
        "K",
        panel=LASTING,
        least=0,
        verbs=("run",),
    )
    stall_warning: float = option(
        60.0, "Waiting time before the missing workers are named.", "SECONDS", panel=STALLS, least=0.1
    )
    stall_abort: float | None = option(
        None,
        "Waiting time before a stalled run is ended; 0: never.",
        "SECONDS",
        panel=STALLS,
        least=0.0,
        usual="1800; 7200 before the first step",
    )
    memory_limit: int = option(
        0,
        "Memory limit per worker: 2GB, 512MB. GPU memory, or host memory without a GPU.",
        "SIZE",
        names="--gpu --memory-limit",
        usual="all available memory",
        reads=read_size,
        rare=True,
        verbs=("run", "sweep", "fit"),
        repeated=True,
    )
    # What verbs ask for, each in its own words.
    spread: int = 0  # hosts that share the workers equally; 0: each host is filled before the next
    enough: float = 0.0  # stop after this many seconds of settled steps, but not before ten steps; 0: no limit
    elastic: int | None = None  # the run goes on without workers that are killed, as long as so many are left
    most: int | None = None  # … and starts again with so many, from the state of a commit
    saving: SaveSettings | None = None  # of the script's state
    staged: bool = True  # False: a measuring program, not a training script; it runs without a stage
    timeline: bool = False  # write a timeline of phases and buckets to the record
    facts: bool = False  # write how the script is set up (`record.facts`)
    account: bool = False  # write what holds the memory of the first steps (`record.account`)
    profile: ProfileSettings | None = None  # trace a few steps
    sharpness: SharpnessSettings | None = None  # measure the sharpness of the final weights


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings that one worker gets when it starts."""

    run: RunSettings
    record: str  # the record's folder
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    host: str = "localhost"
    host_rank: int = 0  # number of the host …
    hosts: int = 1  # … among the hosts of the run
    address: str = ""  # of this host, at which other hosts reach it; empty: found by the route to `store_host`
    interface: str = ""  # the network interface with that address
    cores: tuple[int, ...] = ()  # affinity; empty: unchanged
    threads: int = 1
    gpus: tuple[str, ...] = ()  # names as in CUDA_VISIBLE_DEVICES, its own first
    store_host: str = "127.0.0.1"  # of torch's own store: under another launcher, or if the script creates one
    store_port: int = 0
    agent_store: bool = False  # another launcher's agent serves the store
    peers: tuple[str, ...] = ()  # address and port of each worker, for TensorFlow
    control: str = ""  # address of the launcher's control channel; empty: none
    control_key: str = ""  # the launcher's public CURVE key
    token: str = ""  # proves that a message belongs to this run
    terminal: tuple[tuple[int, int, int], ...] = ()  # the launcher's streams that are terminals, columns and lines


_given: WorkerSettings | None = None  # to this process, by Paceline's launcher


def use(worker: WorkerSettings) -> None:
    """Makes these the settings of this process and of its forks. Called once, when a worker starts."""
    global _given
    _given = worker


def of_this_process() -> WorkerSettings:
    """The settings from Paceline's launcher, or else those in the environment."""
    return from_environment() if _given is None else _given


def from_environment(environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """The settings of a process that another launcher started (torchrun, also under Slurm), or of a single process."""
    env = os.environ if environ is None else environ
    rank, world = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
    return WorkerSettings(
        run=RunSettings(script="", workers=world),
        record="",
        rank=rank,
        world=world,
        local_rank=int(env.get("LOCAL_RANK", str(rank))),
        local_world=int(env.get("LOCAL_WORLD_SIZE", str(world))),
        store_host=env.get("MASTER_ADDR", "127.0.0.1"),
        store_port=int(env.get("MASTER_PORT", "0")),
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def visible_devices(environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES lists, in its order; None if the variable is not set."""
    text = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    # CUDA stops reading at the first entry that is not a device: "" and "-1" hide all entries after them.
    end = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return tuple(names[:end])


def asked_threads(environ: Mapping[str, str] | None = None) -> int | None:
    """Threads per process according to the user's OMP_NUM_THREADS; None if the variable is not set."""
    text = (os.environ if environ is None else environ).get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


CACHES = (
    *("XDG_CACHE_HOME", "TRITON_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
    *("PYTORCH_KERNEL_CACHE_PATH", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "TORCH_HOME", "HF_HOME"),
)


def cache_folders(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Where compilers and libraries keep what processes share: their usual folders, and those that are set."""
    env = os.environ if environ is None else environ
    usual = (os.path.expanduser(os.path.join("~", name)) for name in (".cache", ".triton", ".nv"))
    return (*usual, *(os.path.abspath(env[name]) for name in CACHES if env.get(name)))


def hash_seed(environ: Mapping[str, str] | None = None) -> str:
    """The user's PYTHONHASHSEED, or else a new one: sets of texts then have the same order on every host."""
    asked = (os.environ if environ is None else environ).get("PYTHONHASHSEED", "")
    return asked if asked.isdigit() else str(int.from_bytes(os.urandom(4), "big"))


def module_path(environ: Mapping[str, str] | None = None) -> str:
    """PYTHONPATH, with absolute paths."""
    text = (os.environ if environ is None else environ).get("PYTHONPATH", "")
    return os.pathsep.join(os.path.abspath(part) for part in text.split(os.pathsep) if part)


def shows_own_frames(environ: Mapping[str, str] | None = None) -> bool:
    """Whether tracebacks show Paceline's own frames: PACELINE_TRACEBACK=full."""
    return (os.environ if environ is None else environ).get("PACELINE_TRACEBACK", "") == "full"


def ssh_client(environ: Mapping[str, str] | None = None) -> str:
    """The address from which this process was started over ssh; empty if it was not."""
    return (os.environ if environ is None else environ).get("SSH_CONNECTION", "").partition(" ")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAllocation:
    """The nodes that Slurm has given to this job, as its variables tell."""

    job: str
    nodes: int
    nodelist: str  # in Slurm's short form
    tasks: str  # per node, in Slurm's short form: 4(x2),3
    gpus: int  # on this node; 0 also if this process is on none of the nodes
    node: str  # on which this process runs; empty: none of them, as under salloc
    restarts: int  # how often the job has gone back into the queue


def slurm_allocation(environ: Mapping[str, str] | None = None) -> SlurmAllocation | None:
    """None outside an allocation."""
    env = os.environ if environ is None else environ
    if not env.get("SLURM_JOB_ID") or not env.get("SLURM_JOB_NODELIST"):
        return None
    gpus = env.get("SLURM_GPUS_ON_NODE", "") or env.get("SLURM_GPUS_PER_NODE", "").rpartition(":")[2]
    return SlurmAllocation(
        job=env["SLURM_JOB_ID"],
        nodes=int(env.get("SLURM_JOB_NUM_NODES", "1")),
        nodelist=env["SLURM_JOB_NODELIST"],
        tasks=env.get("SLURM_TASKS_PER_NODE", "1"),
        gpus=int(gpus) if gpus.isdigit() else 0,
        node=env.get("SLURMD_NODENAME", ""),
        restarts=int(env.get("SLURM_RESTART_COUNT") or 0),
    )


def slurm_step(environ: Mapping[str, str] | None = None) -> SlurmAllocation | None:
    """The nodes of the job step that this process is a task of, and its tasks on each; None without such a step, or if
    the step has one node."""
    env = os.environ if environ is None else environ
    found = slurm_allocation(env)
    if found is None or not env.get("SLURM_PROCID") or env.get("SLURM_STEP_NUM_NODES", "1") == "1":
        return None
    return replace(
        found,
        nodes=int(env["SLURM_STEP_NUM_NODES"]),
        nodelist=env.get("SLURM_STEP_NODELIST", found.nodelist),
        tasks=env.get("SLURM_STEP_TASKS_PER_NODE", "1"),
        gpus=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiProcess:
    """This process among those that mpirun, mpiexec or srun has started. `job` is the same on all of one host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str


def mpi_process(environ: Mapping[str, str] | None = None) -> MpiProcess | None:
    """None if this process was started alone."""
    env = os.environ if environ is None else environ
    names = {
        "OMPI_COMM_WORLD_": ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"),  # Open MPI
        "": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI: Hydra
        "SLURM_": ("PROCID", "STEP_NUM_TASKS", "LOCALID", "STEP_TASKS_PER_NODE"),  # srun, with PMIx or without
    }
    for prefix, parts in names.items():
        texts = [env.get(prefix + part, "") for part in parts]
        if prefix == "SLURM_" and env.get("SLURM_STEP_NUM_NODES", "1") != "1":
            texts[3] = "1"  # nodes may differ: only that the processes are on several hosts is needed
        if all(text.isdigit() for text in texts):
            rank, size, local_rank, local_size = map(int, texts)
            # Hydra gives no name to a job: its proxy is the parent of all processes of a host.
            step = f"{env['SLURM_JOB_ID']}.{env.get('SLURM_STEP_ID', '')}" if prefix == "SLURM_" else ""
            job = step or env.get("PMIX_NAMESPACE") or f"parent {os.getppid()}"
            found = MpiProcess(rank=rank, size=size, local_rank=local_rank, local_size=local_size, job=job)
            return found if size > 1 else None
    return None


def in_ray_job(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process is the entry point of a job of a Ray cluster (`ray job submit`)."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in (os.environ if environ is None else environ)


def ray_address(environ: Mapping[str, str] | None = None) -> str:
    """Where the user says that the Ray cluster is: `host:port`, or a word of Ray's. Empty: Ray looks for one."""
    return (os.environ if environ is None else environ).get("RAY_ADDRESS", "")


def is_one_of_several(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a scheduler or MPI has given this process a part of something larger: agents may have to do the work."""
    allocation = slurm_allocation(environ)
    if mpi_process(environ) is not None or in_ray_job(environ):
        return True
    return allocation is not None and (allocation.nodes > 1 or not allocation.node)


def without_slurm_options(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without the variables by which a job's options become those of its steps: a step for an agent
    has options of its own."""
    env = os.environ if environ is None else environ
    kept = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME")
    return {name: value for name, value in env.items() if name in kept or not name.startswith("SLURM_")}


def take_secret() -> str | None:
    """PACELINE_SECRET, which is removed from the environment: no worker inherits the secret of a rendezvous."""
    return os.environ.pop("PACELINE_SECRET", None)


def all_variables() -> dict[str, str]:
    """The environment of this process, for those that record it or look for options in it."""
    return dict(os.environ)


def thread_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables that set how many threads a process computes with."""
    env = os.environ if environ is None else environ
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {name: env[name] for name in names if name in env}


def horovod_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables by which a user tunes Horovod and NCCL, for workers on other hosts: these do not inherit them."""
    own = (os.environ if environ is None else environ).items()
    return {n: value for n, value in own if n.startswith(("HOROVOD_", "NCCL_")) and n not in LAUNCHER_VARIABLES}


def keras_backend(environ: Mapping[str, str] | None = None) -> str:
    """The backend that the user has chosen for Keras; empty if none."""
    return (os.environ if environ is None else environ).get("KERAS_BACKEND", "")


def launcher_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables by which another launcher tells a process that it is a worker."""
    return {name: v for name, v in (os.environ if environ is None else environ).items() if name in LAUNCHER_VARIABLES}


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodSettings:
    """What Horovod's environment variables ask for. Read again at each `hvd.init()`."""

    fusion_threshold: int = 128 << 20  # bytes in one fused buffer; 0: nothing is fused
    cycle_time: float = 0.001  # seconds in which a worker collects submissions that nobody waits for
    cache_capacity: int = 1024  # operations that are remembered; 0: none
    timeline: str = ""  # file of the timeline; "DYNAMIC": written only between start_timeline and stop_timeline
    timeline_cycles: bool = False  # mark cycles in the timeline
    stall_check: float = 60.0  # seconds before a report about missing ranks; 0: no report
    stall_shutdown: float = 0.0  # seconds before the operations in flight fail; 0: never
    autotune: bool = False  # search a fusion threshold and a cycle time
    autotune_log: str = ""  # file of the search's samples
    dynamic_process_sets: bool = False  # process sets may be added and removed after init


def horovod_settings(environ: Mapping[str, str] | None = None) -> HorovodSettings:
    """The settings in variables named as Horovod names them."""
    env = os.environ if environ is None else environ

    def number(name: str, default: float) -> float:
        try:
            return float(env.get(name, ""))
        except ValueError:
            return default

    def is_set(name: str) -> bool:
        return number(name, 0) != 0

    return HorovodSettings(
        fusion_threshold=int(number("HOROVOD_FUSION_THRESHOLD", 128 << 20)),
        cycle_time=number("HOROVOD_CYCLE_TIME", 1.0) / 1000,
        cache_capacity=max(0, int(number("HOROVOD_CACHE_CAPACITY", 1024))),
        timeline=env.get("HOROVOD_TIMELINE", ""),
        timeline_cycles=is_set("HOROVOD_TIMELINE_MARK_CYCLES"),
        stall_check=0.0 if is_set("HOROVOD_STALL_CHECK_DISABLE") else number("HOROVOD_STALL_CHECK_TIME_SECONDS", 60),
        stall_shutdown=number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0),
        autotune=is_set("HOROVOD_AUTOTUNE"),
        autotune_log=env.get("HOROVOD_AUTOTUNE_LOG", ""),
        dynamic_process_sets=is_set("HOROVOD_DYNAMIC_PROCESS_SETS"),
    )


@contextmanager
def changed_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process for a while: part of Horovod's interface (`horovod.common.util.env`)."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)
