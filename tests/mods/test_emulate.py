"""The mod `emulate`: N emulated workers give the losses that N real ones give, batch norms and all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from paceline.comm.group import Group
from paceline.errors import UsageError
from paceline.mods import catalog

SAMPLES, BATCH = 152, 8  # the last batch of an epoch is a smaller one


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.inner, self.flat, self.out = nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.out(torch.relu(self.flat(self.inner(x.flatten(1)))))


def trained(group: Group, mods: list[str], batch: str = "keep", how: str = "SGD") -> Any:
    plain, threads = BatchSampler.__iter__, torch.get_num_threads()
    torch.set_num_threads(1)  # a busy machine makes small operations wait for each other
    try:
        with staged(group, mods=tuple(mods), batch=batch) as stage:
            for asked in catalog.parse(mods):
                catalog.load(asked).on_stage(stage)
            torch.manual_seed(7)
            x, y = torch.randn(SAMPLES, 2, 4, 4), torch.randint(3, (SAMPLES,))
            loader = DataLoader(TensorDataset(x, y), BATCH, shuffle=True)
            model = Net()
            optimizer = getattr(torch.optim, how)(model.parameters(), lr=0.05)
            losses, sizes = [], []
            for _ in range(3):
                for inputs, labels in loader:
                    loss = F.cross_entropy(model(inputs), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                    sizes.append(len(inputs))
            return losses, sizes, stage.notices  # type: ignore[attr-defined]
    finally:
        BatchSampler.__iter__ = plain  # type: ignore[method-assign]
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("workers", "how"),
    [(2, "SGD"), (2, "Adam"), *(pytest.param(8, how, marks=pytest.mark.slow) for how in ("SGD", "Adam"))],
)
def test_real_workers_and_emulated_ones_give_the_same_losses(pool: Any, workers: int, how: str) -> None:
    real = pool(workers).run(trained, ["bn=local"], "scale", how)
    losses, sizes, _ = trained(lone_group(), [f"emulate={workers}"], how=how)
    assert sizes[0] == workers * BATCH
    plainly, *_ = trained(lone_group(), [f"batch=x{workers}:none"], how=how)
    assert losses != pytest.approx(plainly, rel=1e-3), "batch norms of the whole batch are another thing"
    for found, found_sizes, _ in real:
        assert found_sizes == sizes
        assert losses == pytest.approx(found, rel=2e-4)


@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_in_micro_batches(parts: int) -> None:
    whole, *_ = trained(lone_group(), ["emulate=4"])
    found, *_ = trained(lone_group(), ["emulate=4", f"accumulate={parts}"])
    assert found == pytest.approx(whole, rel=2e-4)


def test_on_two_workers(pool: Any) -> None:
    alone, *_ = trained(lone_group(), ["emulate=4"])
    for found, *_ in pool(2).run(trained, ["emulate=4"]):
        assert found == pytest.approx(alone, rel=2e-4)


@pytest.mark.parametrize(("mods", "batch", "says"), [
    (["emulate=4", "accumulate=3"], "keep", "cannot be divided evenly"),
    (["emulate=4"], "scale", "Leave --batch out"),
    (["emulate=4", "batch=x2"], "keep", "exclude each other"),
])  # fmt: skip
def test_what_cannot_be_emulated(mods: list[str], batch: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        trained(lone_group(), mods, batch)
    assert says in str(caught.value)
