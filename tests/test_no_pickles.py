"""Nothing that came over a socket is unpickled: who may unpickle is written down here, with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import paceline

SOURCE = Path(paceline.__file__).parent
READS_CODE = re.compile(
    r"\bpickle\.(load|loads|Unpickler)\b|\bmarshal\.loads?\b|\bshelve\b|\bdill\b|recv_pyobj|\bConnection\b.*\.recv\(\)"
    r"|\ball_gather_object\b|\bbroadcast_object_list\b|\btorch\.load\((?!.*weights_only=True)|(?<!\.)\beval\(|\byaml\.load\("
)
MAY = {
    # Shared memory that only workers of the run hold (comm/memory/handover.py); a batch may hold anything.
    "comm/shm_exchange.py",
    # Pipes and shared memory between a process and its own forks.
    "data/execution/process_pool.py",
    "data/execution/prefetch_process.py",
    "data/execution/slots.py",
    # A file that the user names: the unpickler knows the classes of a DCP table, and nothing else.
    "checkpoint/dcp.py",
    # The user's own function and its results, in files of a private temporary folder.
    "horovod/runner/__init__.py",
    "horovod/runner/task.py",
    # Horovod's broadcast_object and allgather_object: objects of the script, between the workers of one run.
    "horovod/torch/functions.py",
}


def test_only_these_files_read_what_may_run_code() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        for line in path.read_text().splitlines():
            if READS_CODE.search(line.partition("#")[0]):
                found.add(str(path.relative_to(SOURCE)))
    assert found == MAY


def test_files_that_unpickle_open_no_socket() -> None:
    for name in MAY:
        text = (SOURCE / name).read_text()
        assert not re.search(r"\bimport (socket|zmq)\b|from (socket|zmq)|Listener|Client\(", text), name
