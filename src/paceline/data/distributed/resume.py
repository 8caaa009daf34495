"""Resumes a pipeline from a state, on the same or another number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.data.planner import PipelinePlan
from paceline.data.planning.nodes import Context, Mark
from paceline.errors import UsageError

VERSION = 1


def begin(
    plan: PipelinePlan, signature: str, context: Context, states: Sequence[dict[str, Any]]
) -> tuple[int, Mark | None]:
    """The epoch and the mark at which this worker begins."""
    for state in states:
        _check(state, signature)
    first = states[0]
    world = int(first["world"])
    by_rank = {int(state["rank"]): state for state in states}
    same = world == context.world and (len(states) == 1 or len(by_rank) == world)
    own = by_rank.get(context.rank) if same else None
    if own is None and len(states) == 1 and world == context.world and plan.even:
        own = first  # all workers have equal marks
    if own is not None:
        # A worker whose part has ended waits for the others, if their states show that they are in the same epoch.
        over = all(state["ended"] or state["epoch"] > own["epoch"] for state in states)
        return (own["epoch"] + 1, None) if own["ended"] and over else (own["epoch"], own["mark"])
    return _settle(plan, context, by_rank, world)


def _settle(
    plan: PipelinePlan, context: Context, by_rank: dict[int, dict[str, Any]], world: int
) -> tuple[int, Mark | None]:
    if len(by_rank) < world:
        if len(by_rank) > 1 or not plan.even:
            raise UsageError(
                f"restore() got {len(by_rank)} of the states of {world} workers, but worker {context.rank} of "
                f"{context.world} needs all: the workers' positions differ.",
                advice="Pass the states of all ranks: pipeline.restore([state0, state1, …])",
            )
        # All workers have equal marks: one state is enough.
        shared = next(iter(by_rank.values()))
        by_rank = dict.fromkeys(range(world), shared)
    states = [by_rank[rank] for rank in range(world)]
    going = [state for state in states if not state["ended"]]
    if not going:
        return max(state["epoch"] for state in states) + 1, None
    epoch = min(state["epoch"] for state in going)
    later = [state for state in going if state["epoch"] > epoch and state["mark"] is not None]
    if later:
        raise UsageError(
            f"restore() got states of different epochs: {epoch} and {later[0]['epoch']}.",
            advice="Take the states of all workers after the same number of batches.",
        )
    ends = [state["ended"] or state["epoch"] > epoch for state in states]
    if all(state["mark"] is None for state in going):
        return epoch, None
    marks = [{"end": True} if ended else state["mark"] for state, ended in zip(states, ends, strict=True)]
    return epoch, plan.settle(marks)(context)


def _check(state: dict[str, Any], signature: str) -> None:
    if state.get("paceline") != VERSION:
        raise UsageError(
            "restore() got a value that is not a pipeline's state, or a state of another version.",
            advice="Pass the result of pipeline.state().",
        )
    if state["stages"] != signature:
        raise UsageError(
            f"restore() got the state of another pipeline: {state['stages']}; this pipeline is {signature}.",
            advice="Use the same source, order and filters; batch sizes and parallelism may differ.",
        )
