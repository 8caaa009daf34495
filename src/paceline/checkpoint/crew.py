"""The workers that save or load a checkpoint together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from paceline.errors import CheckpointError
from paceline.script.seams.api import current, in_own_process


class Crew:
    """All workers of this run. One process alone is a crew of one."""

    def __init__(self, rank: int = 0, world: int = 1, gather: Callable[[Any, str], list[Any]] | None = None) -> None:
        self.rank, self.world, self._gather = rank, world, gather
        self.apart = False  # the workers' random streams and loaders differ: the script distributes itself
        self.writes = True  # False: another worker saves for this one
        self.workers = world  # of the run

    def gather(self, value: Any, what: str) -> list[Any]:
        """The JSON value of each worker, in rank order. Every worker calls it; a lost peer raises PeerLostError."""
        return [value] if self._gather is None else self._gather(value, what)

    def each(self, what: str, do: Callable[[], Any]) -> list[Any]:
        """Calls `do` on every worker, and returns all results. What one worker cannot read or write raises the same
        CheckpointError on all, so that none waits for another."""
        try:
            outcome = {"result": do()}
        except CheckpointError as error:
            outcome = {"message": error.message, "advice": error.advice}
        except OSError as error:
            at = f"{error.filename}: " if error.filename else ""
            outcome = {"message": f"The checkpoint failed while {what}: {at}{error.strerror or error}.", "advice": ""}
        outcomes = self.gather(outcome, what)
        for found in outcomes:
            if "message" in found:
                raise CheckpointError(found["message"], advice=found["advice"])
        return [found["result"] for found in outcomes]

    def first(self, what: str, do: Callable[[], Any]) -> Any:
        """Calls `do` on rank 0 only; every worker gets the result, or raises the error."""
        return self.each(what, do if self.rank == 0 else lambda: None)[0]


def this_crew() -> Crew:
    """The workers of `paceline run`, or of torch.distributed if the script has initialised it, or this process."""
    stage = current()
    if stage is not None and in_own_process():
        group = stage.group
        if not stage.strategy.lockstep:  # workers go at their own pace: nobody waits, and rank 0 saves
            crew = Crew()
            crew.writes, crew.workers = group.rank == 0, group.world
            return crew
        crew = Crew(group.rank, group.world, group.gather_objects if group.world > 1 else None)
        crew.apart = stage.aside and group.world > 1
        return crew
    dist = torch.distributed
    if stage is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        crew = Crew(dist.get_rank(), dist.get_world_size(), _gather_over_torch)
        crew.apart = True
        return crew
    return Crew()


def _gather_over_torch(value: Any, what: str) -> list[Any]:
    """As text: torch's own gathering of objects unpickles what it receives."""
    dist = torch.distributed
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    raw = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([raw.numel()], device=device))
    longest = int(max(size.item() for size in sizes))
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: raw.numel()] = raw
    texts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(texts, padded)
    return [
        json.loads(text[: int(size.item())].cpu().numpy().tobytes()) for text, size in zip(texts, sizes, strict=True)
    ]
