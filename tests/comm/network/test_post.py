"""Parcels between workers: what cannot be sent ends the run."""

from __future__ import annotations

import errno
import threading
from contextlib import nullcontext

import pytest
import torch

from paceline import threads
from paceline.comm.network.post import Post


def test_a_parcel_that_cannot_be_sent_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may wait for a peer, which waits for the parcel: nobody would ask for the error."""
    told, has_died = list[BaseException](), threading.Event()

    def die(thread: threading.Thread, error: BaseException) -> None:
        told.append(error)
        has_died.set()

    def full(data: torch.Tensor, to: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(threads, "on_death", die)
    post = Post(lambda what: nullcontext(), full, full)
    post.send(1, "value", [torch.ones(2)])
    assert has_died.wait(20)
    assert isinstance(told[0], OSError)
    with pytest.raises(OSError, match="Cannot allocate"):
        post.send(1, "value", [])
    threads.forget()
