"""Distributed inference: each worker computes some of the batches, and every worker gets all outputs, in order.

    outputs = paceline.predict(model, loader)

Whole batches are dealt out, so that each is computed exactly as in one process, and workers wait for each other only at
the end. Without Paceline, and with one worker, it is an ordinary loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from paceline.comm.coalesced import AT_ONCE, broadcast_all
from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script import rng, tree
from paceline.script.output.real_files import real_files
from paceline.script.seams.api import current
from paceline.script.seams.strategy import Strategy
from paceline.torch_private import parameters_in

WHAT = "the outputs of a prediction"
Call = Callable[[nn.Module, Any], Any]


def predict(model: nn.Module, loader: Any, *, call: Call | None = None, write: str | Path | None = None) -> Any:
    """The model's outputs for all batches of the loader, in evaluation mode and without gradients: tensors joined along
    their first dimension; where they do not fit together (sequences of several lengths), a list with one output a
    batch.

    `call(model, batch)` computes a batch; by default the model gets the batch, the first item of a tuple or list, or a
    dictionary's items by name. With `write`, each worker writes the outputs of its own batches to a file of that
    folder, nothing is gathered, and the files' names are returned: dictionaries for `torch.load(weights_only=True)`
    with `batches` (their numbers) and `outputs` (one a batch).

    Every worker calls it, and it waits for all of them; a peer that is gone raises.
    """
    stage, call = current(), call or _call
    with _evaluating(model), torch.no_grad():
        if stage is None or stage.group.world == 1 or stage.aside or not _deals(stage.strategy):
            return _given(dict(enumerate(call(model, batch) for batch in loader)), None, write)
        group: Group = stage.group
        broadcast_all(group, (*parameters_in(model), *model.buffers()), "the model's weights")
        before = rng.snapshot()
        with stage.beside():
            own, drew = _compute(model, _deal(loader, group.rank, group.world), call)
        if any(group.gather_objects(drew or not own, WHAT)):
            # The draws of one batch depend on the batches before it, or there are fewer batches than workers: the
            # workers compute each batch together.
            rng.restore(before)
            own = dict(enumerate(call(model, batch) for batch in loader))
            if write is None:
                return _given(own, None, None)
            own = {number: output for number, output in own.items() if number % group.world == group.rank}
    return _given(own, group, write)


def _deals(strategy: Strategy) -> bool:
    """Whether workers can compute different batches: not if each holds a part of the model, or goes its own way."""
    return strategy.whole_models and strategy.lockstep


def _given(own: dict[int, Any], group: Group | None, write: str | Path | None) -> Any:
    """The outputs as the caller gets them, from those of this worker's batches. `group`: other workers have others."""
    if write is not None:
        name = _write(Path(write), 0 if group is None else group.rank, own)
        return [name] if group is None else group.gather_objects(name, WHAT)
    return _join(list(own.values())) if group is None else _gather(own, group)


def _compute(model: nn.Module, batches: Iterator[tuple[int, bool, Any]], call: Call) -> tuple[dict[int, Any], bool]:
    """The outputs of these batches by number, and whether a sample or the model drew random numbers."""
    own, drew = dict[int, Any](), False
    for number, has_drawn, batch in batches:
        streams = rng.snapshot()
        own[number] = call(model, batch)
        drew = drew or has_drawn or rng.drawn_since(streams)
    return own, drew


def _deal(loader: Any, rank: int, world: int) -> Iterator[tuple[int, bool, Any]]:
    """This worker's batches: number, whether its samples drew random numbers, and the batch. Draws the loader's own
    numbers (the order of samples) as one process does, on every worker."""
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or sampler is None:
        for number, batch in enumerate(loader):  # every worker makes all of them, and draws alike
            if number % world == rank:
                yield number, False, batch
        return
    torch.empty((), dtype=torch.int64, device="cpu").random_(
        generator=loader.generator
    )  # the seed of the loader's processes
    indices = list(sampler)
    own = DataLoader(
        _Watched(loader.dataset),
        batch_sampler=indices[rank::world],
        num_workers=loader.num_workers,
        collate_fn=_Collate(loader.collate_fn),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator("cpu").manual_seed(0),
        prefetch_factor=loader.prefetch_factor,
    )
    for number, (has_drawn, batch) in enumerate(own):
        yield rank + world * number, has_drawn, batch


class _Watched(torch.utils.data.Dataset[Any]):
    """A dataset whose samples come with whether random numbers were drawn for them."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        streams = rng.snapshot()
        dataset = self._dataset
        many = getattr(dataset, "__getitems__", None)
        samples = many(indices) if callable(many) else [dataset[index] for index in indices]
        return [rng.drawn_since(streams), samples]

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]


class _Collate:
    """A class, not a function: a loader's process may have to unpickle it."""

    def __init__(self, plain: Callable[[Any], Any]) -> None:
        self._plain = plain

    def __call__(self, watched: list[Any]) -> tuple[bool, Any]:
        drew, samples = watched
        streams = rng.snapshot()
        batch = self._plain(samples)
        return drew or rng.drawn_since(streams), batch


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(batch[0] if isinstance(batch, (list, tuple)) else batch)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _join(outputs: list[Any]) -> Any:
    """One nest of joined tensors, or a list of outputs if they do not fit together."""
    if not outputs:
        return []
    leaves = [tree.leaves(output) for output in outputs]
    if len({tuple(_kind(leaf) for leaf in one) for one in leaves}) > 1 or None in map(_kind, leaves[0]):
        return outputs
    joined = iter([torch.cat(column) for column in zip(*leaves, strict=True)])
    return tree.rebuild(outputs[0], joined)


def _kind(leaf: Any) -> Any:
    """What joined leaves have in common; None for a leaf that has no rows."""
    return (leaf.dtype, leaf.shape[1:]) if isinstance(leaf, torch.Tensor) and leaf.dim() else None


def _gather(own: dict[int, Any], group: Group) -> Any:
    """All workers' outputs in the order of the batches, on this worker's device. Each worker has at least one."""
    example = next(iter(own.values()))
    device = next((leaf.device for leaf in tree.leaves(example) if isinstance(leaf, torch.Tensor)), None)
    mine, outputs = list(own), dict(own)
    sizes = [sum(leaf.nbytes for leaf in tree.leaves(o) if isinstance(leaf, torch.Tensor)) for o in own.values()]
    told = group.gather_objects([len(mine), max(sizes)], WHAT)
    rounds, step = max(count for count, _ in told), max(1, AT_ONCE // max(1, max(size for _, size in told)))
    for first in range(0, rounds, step):
        sent = {str(number): tree.leaves(own[number]) for number in mine[first : first + step]}
        for theirs in _exchange(sent, group):
            for number, leaves in theirs.items():
                if int(number) not in outputs:
                    moved = (leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
                    outputs[int(number)] = tree.rebuild(example, moved)
    return _join([outputs[number] for number in sorted(outputs)])


def _exchange(sent: dict[str, Any], group: Group) -> list[dict[str, Any]]:
    try:
        return group.gather_objects(sent, WHAT)
    except TypeError as error:
        raise ScriptError(
            f"A prediction cannot be gathered: {error}",
            advice="Let `call` return tensors, numbers or texts, in lists, tuples or dictionaries.",
        ) from error


def _write(folder: Path, rank: int, own: dict[int, Any]) -> str:
    with real_files():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"predictions.rank{rank}.pt"
        torch.save({"batches": list(own), "outputs": list(own.values())}, path)
    return str(path)
