"""Mods of the input: the same samples in the same order, on one worker and on two."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset, TensorDataset

from paceline.comm.group import Group
from paceline.errors import UsageError
from paceline.mods import catalog
from paceline.mods.loader import PinnedTensor


class Own(Dataset[Any]):
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], index % 3


def trained(group: Group, mods: list[str], kind: str, **options: Any) -> Any:
    """Every batch's first numbers and every loss, of two epochs; and how batches were made."""
    plain = BatchSampler.__iter__
    try:
        return _trained(group, mods, kind, options)
    finally:
        BatchSampler.__iter__ = plain  # type: ignore[method-assign]


def _trained(group: Group, mods: list[str], kind: str, options: dict[str, Any]) -> Any:
    with staged(group, mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        x = torch.arange(50.0).view(50, 1).repeat(1, 4) / 50
        whole = TensorDataset(x, torch.arange(50) % 3)
        dataset: Any = {"tensors": whole, "part": Subset(whole, range(7, 49, 2)), "own": Own(x)}[kind]
        if options.pop("seeded", False):
            options["generator"] = torch.Generator().manual_seed(3)
        loader = DataLoader(dataset, 6, **{"shuffle": True} | options)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        seen = []
        for _ in range(2):
            for batch in loader:
                inputs, labels = batch
                loss = F.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.append((type(batch), inputs[:, 0].tolist(), labels.tolist(), round(loss.item(), 5)))
        return (
            seen,
            hasattr(dataset, "__getitems__") and "give" in dataset.__getitems__.__qualname__,
            loader.num_workers,
        )


@pytest.mark.parametrize("kind", ["tensors", "part", "own"])
@pytest.mark.parametrize("mod", ["resident", "loader=2", "loader=fast"])
@pytest.mark.crossed("workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_samples_in_the_same_order(pool: Any, kind: str, mod: str, workers: int) -> None:
    plain, _, _ = trained(lone_group(), [], kind)
    found = [trained(lone_group(), [mod], kind)] if workers == 1 else pool(2).run(trained, [mod], kind)
    for seen, is_resident, processes in found:
        assert [step[:3] for step in seen] == [step[:3] for step in plain]
        assert [step[3] for step in seen] == pytest.approx([step[3] for step in plain], abs=2e-5)
        assert is_resident == (mod == "resident" and kind != "own"), "the mod was at work, where it applies"
        assert processes == (2 if mod == "loader=2" else 0)


@pytest.mark.parametrize("options", [{"shuffle": False}, {"drop_last": True}, {"seeded": True}])
@pytest.mark.parametrize("batch", [[], ["batch=10"], ["batch=x3"]])
def test_resident_keeps_every_loaders_order(options: dict[str, Any], batch: list[str]) -> None:
    plain, _, _ = trained(lone_group(), batch, "tensors", **options)
    seen, is_resident, _ = trained(lone_group(), ["resident", *batch], "tensors", **options)
    assert seen == plain
    assert is_resident


class Signed(Own):
    """Each sample with the process that loaded it."""

    def __getitem__(self, index: int) -> Any:
        return self.x[index], os.getpid()


def epochs(group: Group, mods: list[str], what: str) -> Any:
    """What each epoch gives, the processes that load in it, and what is drawn afterwards."""
    with staged(group, mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        dataset = Signed(torch.arange(20.0).view(20, 1))
        loader = DataLoader(dataset, 4, shuffle=True, generator=torch.Generator() if what == "generator" else None)
        seen, processes = [], []
        for epoch in range(4):
            if what == "dataset changes" and epoch == 2:
                dataset.x = dataset.x + 100
            if what == "tensor changes" and epoch == 2:
                dataset.x += 100
            processes.append(set[int]())
            for number, (x, process) in enumerate(loader):
                processes[-1] |= set(process.tolist())
                seen.append(x.flatten().tolist())
                if what == "loop in loop" and number == 1:
                    seen.append(next(iter(loader))[0].flatten().tolist())
                if what == "break" and number == 2:
                    break
            seen.append([float(torch.rand(()))])
        ahead = loader.prefetch_factor
        assert not loader.persistent_workers, "as the script wrote it"
        loader._iterator = None  # type: ignore[assignment]
        return seen, processes, ahead


@pytest.mark.parametrize("what", ["plain", "generator", "break", "loop in loop", "dataset changes", "tensor changes"])
def test_a_fast_loader_changes_nothing(what: str) -> None:
    assert epochs(lone_group(), ["loader=fast"], what)[0] == epochs(lone_group(), [], what)[0]


@pytest.mark.parametrize("what", ["plain", "generator", "break", "loop in loop", "dataset changes", "tensor changes"])
def test_processes_stay_from_epoch_to_epoch_and_change_nothing(what: str) -> None:
    plain, _, _ = epochs(lone_group(), [], what)
    seen, processes, ahead = epochs(lone_group(), ["loader=2:3"], what)
    assert seen == plain
    assert ahead == 3
    first, second, third, fourth = processes
    assert len(first) == 2
    assert first == second
    assert third == fourth
    assert (second == third) == ("changes" not in what), "processes that hold an older dataset are not used"


def test_processes_stay_on_two_workers(pool: Any) -> None:
    plain, _, _ = epochs(lone_group(), [], "plain")
    for seen, processes, _ in pool(2).run(epochs, ["loader=1"], "plain"):
        assert seen == plain
        assert len(processes[1] & processes[2] & processes[3]) == 2, "each worker's, which load half of a batch each"


def test_a_pinned_tensor_is_a_tensor_but_for_its_copies() -> None:
    x = torch.randn(3, 4)
    same = x.clone()
    x.__class__ = PinnedTensor
    assert isinstance(x, torch.Tensor)
    for made in (x + 1, x[:2], x.to("cpu"), x.to(torch.float64), x.to("cpu", torch.float64), copy.deepcopy(x)):
        assert type(made) is torch.Tensor
    assert torch.equal(x.to(torch.float64), same.double())
    assert type(pickle.loads(pickle.dumps(x))) is torch.Tensor
    x.mul_(2)
    assert torch.equal(x.to("cpu"), 2 * same)
    model = nn.Linear(4, 2)
    x.requires_grad_()
    model(x.to("cpu")).sum().backward()
    torch.testing.assert_close(x.grad, model.weight.sum(0).expand(3, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("mod", ["loader=1", "loader=2:4"])
def test_pinned_batches_are_copied_while_the_host_goes_on(mod: str) -> None:
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse([mod])[0]).on_stage(stage)
        x = torch.randn(64, 1000)
        kept = []
        for batch, _ in DataLoader(TensorDataset(x, x), 16):
            assert type(batch) is PinnedTensor
            busy = torch.randn(4000, 4000, device="cuda")
            for _ in range(20):
                busy = busy @ busy * 1e-3
            kept.append(batch.to("cuda"))
            assert not torch.cuda.current_stream().query(), "the host is ahead"
            assert type(kept[-1]) is torch.Tensor
        assert torch.equal(torch.cat(kept).cpu(), x)


def test_both_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        catalog.parse(["resident", "loader=2"])
