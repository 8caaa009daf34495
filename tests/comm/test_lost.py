"""Which errors of a collective are about a peer."""

from __future__ import annotations

import pytest

from paceline.comm.group import Group
from paceline.errors import PartedError, PeerLostError
from paceline.settings import RunSettings, WorkerSettings


def raise_in(filename: str, text: str) -> None:
    names: dict[str, object] = {}
    exec(compile(f"def fail():\n    raise RuntimeError({text!r})\n", filename, "exec"), names)
    names["fail"]()  # type: ignore[operator]


@pytest.fixture
def group() -> Group:
    return Group(WorkerSettings(run=RunSettings(script="train.py"), record="", rank=0, world=1))


def test_what_a_signal_handler_raises_in_a_collective_is_no_parting(group: Group) -> None:
    """torch's DataLoader raises wherever the main thread is when one of its processes was killed."""
    with pytest.raises(RuntimeError, match="killed by signal"), group.waiting("gradients"):
        raise_in("/lib/torch/utils/data/_utils/signal_handling.py", "DataLoader worker (pid 7) is killed by signal: x")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Connection closed by peer [127.0.0.1]:61143", PeerLostError),
        ("Application timeout caused pair closure", PeerLostError),
        ("op.preamble.length <= op.nbytes. 8 vs 4", PartedError),
    ],
)
def test_what_a_backend_raises_is_explained(group: Group, text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind), group.waiting("gradients"):
        raise_in("/lib/torch/distributed/distributed_c10d.py", text)
