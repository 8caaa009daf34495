"""The contract of an unmodified script, point by point (DESIGN, section 3). One test at least for each."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from staged import staged
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline.comm.group import Group
from paceline.errors import PartedError
from paceline.launch import placement
from paceline.mods import catalog
from paceline.settings import RunSettings
from paceline.topology import Core, Host

Play = Callable[..., Any]


def rows(batch: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SHOWN: list[torch.Tensor] = []


class Curious(nn.Module):
    """Remembers how many rows it was shown, and which, where the proof does not look, and without reading them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x: torch.Tensor, shown: list[torch.Tensor] = SHOWN) -> Any:
        shown.append(x[:, 0].detach())
        y = self.layer(x)
        return {"rows": y, "loss": (y**2).mean()}


# -- 1 -----------------------------------------------------------------------------------------------------------------


def sliced(group: Group, batch: int) -> Any:
    with staged(group):
        torch.manual_seed(0)
        model = Curious()
        x = torch.arange(float(batch)).double().unsqueeze(1).expand(batch, 3)
        out = model(x)
        return SHOWN[-1].tolist(), out["rows"].detach(), out["loss"].item()


@pytest.mark.parametrize("batch", [7, 6, 2, 1])
def test_point_01_a_call_is_computed_in_slices_and_returns_the_whole(pool: Any, batch: int) -> None:
    torch.manual_seed(0)
    expected = Curious()(torch.arange(float(batch)).double().unsqueeze(1).expand(batch, 3))
    for rank, (shown, found, loss) in enumerate(pool(3).run(sliced, batch)):
        mine = list(range(batch * rank // 3, batch * (rank + 1) // 3))
        assert shown == (mine or [0]), "a worker without rows computes a borrowed one"
        torch.testing.assert_close(found, expected["rows"].detach())
        assert loss == pytest.approx(expected["loss"].item())


def whole_loss(group: Group) -> list[int]:
    seen = []

    class Loss(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return x.sum()

    with staged(group):
        Loss()(nn.Linear(3, 2)(torch.ones(6, 3)))
    return seen


def test_point_01_modules_without_parameters_run_whole(pool: Any) -> None:
    assert pool(3).run(whole_loss) == [[6]] * 3


# -- 2 -----------------------------------------------------------------------------------------------------------------


def gan_weights() -> list[torch.Tensor]:
    """Two chained models, a penalty written outside them, plain SGD: a wrong factor shows."""
    torch.manual_seed(1)
    generator, critic = nn.Linear(2, 3).double(), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (generator, critic)]
    for step in range(3):
        real = rows(5, seed=step)
        noise = torch.randn(5, 2, dtype=torch.float64)
        optimizers[1].zero_grad()
        loss = critic(generator(noise).detach()).mean() - critic(real).mean()
        (loss + 0.01 * sum((p**2).sum() for p in critic.parameters())).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(generator(noise)).mean()).backward()
        optimizers[0].step()
    return [p.detach() for model in (generator, critic) for p in model.parameters()]


def gan_in_slices(group: Group) -> list[torch.Tensor]:
    with staged(group):
        return gan_weights()


@pytest.mark.parametrize("world", [2, 3, 5])
def test_point_02_gradients_are_those_of_one_process(pool: Any, world: int) -> None:
    expected = gan_weights()
    for found in pool(world).run(gan_in_slices):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


# -- 3 -----------------------------------------------------------------------------------------------------------------


def norms() -> list[float]:
    """What a script sees of its gradients after each of three backwards a step, over several steps."""
    torch.manual_seed(1)
    model, seen = nn.Linear(3, 2).double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        for part in range(3):
            (model(rows(5, seed=3 * step + part)) ** 2).sum().backward()
            if step != 3:  # once it doesn't look: gradients may then be added up first, and sent once
                seen.append(model.weight.grad.norm().item())
        seen.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    return seen


def norms_in_slices(group: Group) -> list[float]:
    with staged(group):
        return norms()


def test_point_03_after_every_backward_a_gradient_is_the_global_one(pool: Any) -> None:
    expected = norms()
    for found in pool(3).run(norms_in_slices):
        assert found == pytest.approx(expected, rel=1e-10)


# -- 4 -----------------------------------------------------------------------------------------------------------------


def test_point_04_a_script_whose_only_model_mixes_samples_runs_whole_and_says_so(play: Play) -> None:
    played = play(
        """
        import torch
        class Mixer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(3, 3))
            def forward(self, images):
                y = images @ self.weight
                return y - y.mean(0)
        model = Mixer()
        for step in range(3):
            model(torch.randn(6, 3)).sum().backward()
            print("step", step)
        """
    )
    assert played.outcome.exit_code == 0
    assert played.printed == "step 0\nstep 1\nstep 2\n"
    notices = "\n".join(played.outcome.notices)
    for part in ("Mixer", "every worker computes it whole", "no faster than one", "model, called at train.py:12"):
        assert part in notices
    assert "--whole" not in notices  # it is whole
    assert "view=slice" not in notices  # it needs a DataLoader, and the script has none


def test_point_04_a_notice_names_the_local_variable_the_cause_once_and_what_to_type(play: Play) -> None:
    played = play(
        """
        import torch
        from torch.utils.data import DataLoader
        class Center(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(3, 3))
            def forward(self, images):
                y = images @ self.weight
                return y - y.median(0).values
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = Center(), torch.nn.Linear(3, 1)
            def forward(self, images):
                return self.head(self.body(images))
        class Trainer:
            def __init__(self):
                self.model = Model()
            def fit(self):
                for images in DataLoader(torch.randn(12, 3), batch_size=6):
                    self.model(images).sum().backward()
        Trainer().fit()
        """
    )
    (notice,) = (n for n in played.outcome.notices if "is not computed in slices" in n)
    assert "The module Center (self.model.body, called at train.py:" in notice
    assert "by median (train.py:10)" in notice
    assert notice.endswith("To let every worker see only its own slice, as under DDP: --mod view=slice.")


# -- 5 -----------------------------------------------------------------------------------------------------------------


class Numbers(Dataset):
    def __init__(self, loaded: Callable[[int], None]) -> None:
        self.loaded = loaded

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded(index)
        return torch.tensor(float(index))


def epochs(loaded: list[int]) -> tuple[list[list[float]], list[int], list[int]]:
    """Two epochs, what was loaded in the second, and the script's random state afterwards."""
    log: Any = ModuleType("log")  # a list in the dataset's reach would be its own state, and every worker load it all
    log.loaded = loaded
    torch.manual_seed(0)
    loader = DataLoader(Numbers(lambda index: log.loaded.append(index)), batch_size=6, shuffle=True)
    batches = [batch.tolist() for batch in loader]
    loaded.clear()
    batches += [batch.tolist() for batch in loader]
    return batches, loaded, torch.randperm(5).tolist()


def epochs_in_slices(group: Group) -> tuple[list[list[float]], list[int], list[int]]:
    with staged(group):
        return epochs([])


def test_point_05_each_sample_is_loaded_by_one_worker(pool: Any) -> None:
    batches, _, order = epochs([])
    found = pool(3).run(epochs_in_slices)
    assert sorted(index for _, loaded, _ in found for index in loaded) == list(range(20))
    assert all(theirs == batches for theirs, _, _ in found), "the order is the script's own"
    assert all(theirs == order for _, _, theirs in found), "and so is its random state afterwards"


# -- 6 -----------------------------------------------------------------------------------------------------------------


def dropped(group: Group | None) -> tuple[list[torch.Tensor], list[float]]:
    with nullcontext() if group is None else staged(group, seed=4):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5))
        nn.init.ones_(model[0].weight)
        masks = [model(torch.ones(6, 3)).detach() != 0 for _ in range(2)]
        return masks, [torch.rand(1).item(), float(np.random.rand()), random.random()]


def test_point_06_dropout_and_the_streams_after_it_are_those_of_one_process(pool: Any) -> None:
    masks, streams = dropped(None)
    for found_masks, found_streams in pool(3).run(dropped):
        assert all(torch.equal(a, b) for a, b in zip(found_masks, masks, strict=True))
        assert found_streams == streams


# -- 7 -----------------------------------------------------------------------------------------------------------------


def weights(group: Group) -> list[torch.Tensor]:
    with staged(group):
        torch.manual_seed(group.rank)  # as if the workers' streams had started apart
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        model[1].running_mean.fill_(group.rank)
        before = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
        model.eval()(torch.ones(4, 3))
        return before + [t.detach() for t in (*model.parameters(), *model.buffers())]


def test_point_07_weights_and_buffers_are_rank_0s_at_the_first_call(pool: Any) -> None:
    found = pool(3).run(weights)
    half = len(found[0]) // 2
    for each in found:
        for after, rank_0s in zip(each[half:], found[0][:half], strict=True):
            assert torch.equal(after, rank_0s)
    assert not torch.equal(found[1][0], found[0][0]), "they were different before"


# -- 8 -----------------------------------------------------------------------------------------------------------------


def evaluated(group: Group | None) -> tuple[int, list[int], float]:
    torch.manual_seed(0)
    model = Curious().eval()
    right = 0
    with torch.no_grad():
        for seed in range(4):
            right += int((model(rows(5, seed=seed))["rows"].argmax(1) == 1).sum())
    shown = [len(each) for each in SHOWN]
    return right, shown, model(rows(5))["loss"].item()


def evaluated_in_slices(group: Group) -> tuple[int, list[int], float]:
    with staged(group):
        return evaluated(group)


def test_point_08_evaluation_has_the_same_metrics_and_a_part_of_the_work(pool: Any) -> None:
    right, shown, loss = evaluated(None)
    found = pool(2).run(evaluated_in_slices)
    for theirs in found:
        assert theirs[0] == right
        assert theirs[2] == pytest.approx(loss)
    # The first call is also run whole, as the proof.
    assert all(sum(theirs[1][-3:]) < sum(shown[-3:]) for theirs in found)


# -- 9 -----------------------------------------------------------------------------------------------------------------


def test_point_09_only_rank_0_speaks_and_every_rank_reads_its_own_writes(play: Play) -> None:
    played = play(
        """
        import os, sys, torch
        from paceline.settings import of_this_process
        rank = str(of_this_process().rank)
        os.makedirs("out", exist_ok=True)
        with open("out/notes.txt", "w") as file:
            file.write("from rank " + rank)
        torch.save({"rank": rank}, "model.pt")
        print("read", open("out/notes.txt").read(), torch.load("model.pt")["rank"], sorted(os.listdir(".")))
        print("error of", rank, file=sys.stderr)
        """,
        workers=3,
    ).well
    assert played.printed == "read from rank 0 0 ['model.pt', 'out']\n"
    assert (played.folder / "out" / "notes.txt").read_text() == "from rank 0"
    assert torch.load(played.folder / "model.pt") == {"rank": "0"}
    assert sorted(p.name for p in played.folder.iterdir()) == ["model.pt", "out"]
    for rank in (1, 2):
        assert f"read from rank {rank} {rank} ['model.pt', 'out']" in played.log(rank)
        assert f"error of {rank}" in played.log(rank)


# -- 10 ----------------------------------------------------------------------------------------------------------------


def normalised(group: Group, local: bool) -> torch.Tensor:
    with staged(group) as stage:
        if local:
            catalog.load(catalog.parse(["bn=local"])[0]).on_stage(stage)
        return nn.BatchNorm1d(3).double()(rows(6)).detach()


def test_point_10_batch_norm_sees_the_batch_and_with_a_mod_its_slice(pool: Any) -> None:
    norm = nn.BatchNorm1d(3).double()
    whole = norm(rows(6)).detach()
    slices = torch.cat([norm(part) for part in rows(6).split(3)]).detach()
    for found in pool(2).run(normalised, True):
        torch.testing.assert_close(found, slices)
    for found in pool(2).run(normalised, False):
        torch.testing.assert_close(found, whole)


# -- 11 ----------------------------------------------------------------------------------------------------------------


def host(gpus: tuple[str, ...]) -> Host:
    return Host(name="here", cores=tuple(Core(id=i, node=0, physical=(0, i)) for i in range(4)), gpus=gpus)


def test_point_11_cuda_is_a_workers_own_gpu_and_the_others_come_behind() -> None:
    workers = placement.place(RunSettings(script="", workers=3), host(("0", "1", "2")), own_threads=4)
    seen = [placement.environment(worker)["CUDA_VISIBLE_DEVICES"] for worker in workers]
    assert seen == ["0,1,2", "1,2,0", "2,0,1"]


def test_point_11_more_workers_than_gpus_share_them() -> None:
    workers = placement.place(RunSettings(script="", workers=3), host(("5", "7")), own_threads=4)
    assert [worker.gpus for worker in workers] == [("5", "7"), ("7", "5"), ("5", "7")]


# -- 12 ----------------------------------------------------------------------------------------------------------------


def test_point_12_a_script_that_makes_its_own_process_group_is_left_alone(play: Play) -> None:
    played = play(
        """
        import torch, torch.distributed as dist
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        torch.manual_seed(rank)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        x = torch.full((2 + rank, 3), float(rank))
        y = model(x)
        y.sum().backward()
        total = torch.tensor([float(rank)])
        dist.all_reduce(total)
        with open(f"rank{rank}.txt", "w") as file:
            file.write(str(tuple(y.shape)))
        print("sum", total.item(), "grad", model.module.weight.grad[0, 0].item())
        dist.destroy_process_group()
        """,
        launch_as="torchrun",
    ).well
    # DDP's own average of 0 and 3: nobody divided or gathered again.
    assert played.printed == "sum 1.0 grad 1.5\n"
    assert (played.folder / "rank0.txt").read_text() == "(2, 1)"
    assert (played.folder / "rank1.txt").read_text() == "(3, 1)"
    assert not played.notices


# -- 13 ----------------------------------------------------------------------------------------------------------------


def parted(group: Group) -> None:
    with staged(group):
        model = nn.Linear(3, 1)
        (model(torch.ones(4, 3)).sum() * (1 + group.rank)).backward()


def test_point_13_workers_that_hold_different_losses_are_told_where(pool: Any) -> None:
    with pytest.raises(PartedError, match=r"test_contract.py:\d+ differ .*: worker 0 .*, worker 1 ") as caught:
        pool(2).run(parted)
    assert "Seed or sort" in caught.value.advice


@pytest.mark.slow  # six seconds of waiting; tests/launch/test_stall.py names a worker in a loop, and its line, too
def test_point_13_a_worker_in_another_branch_is_named_with_its_line(play: Play) -> None:
    played = play(
        """
        import time, torch
        from paceline.settings import of_this_process
        model = torch.nn.Linear(3, 1)
        model(torch.ones(4, 3)).sum().backward()
        while of_this_process().rank == 1:
            time.sleep(0.01)  # the line where rank 1 is
        model(torch.ones(4, 3)).sum().backward()
        """,
        stall_warning=3.0,
        stall_abort=6.0,
    )
    assert played.outcome.exit_code != 0
    assert played.stalls  # on a busy machine a worker that is slow to start may be told of before
    assert "time.sleep(0.01)  # the line where rank 1 is" in played.stalls[-1]
    assert "Missing: worker 1." in played.stalls[-1]


def test_point_13_batches_of_different_sizes_end_in_an_error_that_says_so(play: Play) -> None:
    played = play(
        """
        import torch
        from paceline.settings import of_this_process
        model = torch.nn.Linear(3, 1)
        for _ in range(3):
            size = 40 if of_this_process().rank == 0 else 4000
            model(torch.ones(size, 3)).mean().backward()
        print("a wrong number")
        """,
        stall_warning=10.0,
        stall_abort=12.0,
    )
    assert played.outcome.exit_code != 0
    assert "a wrong number" not in played.printed
    assert "The arguments of model" in played.outcome.message
    assert "40" in played.outcome.message
    assert "4000" in played.outcome.message


def test_point_13_a_script_without_a_module_runs_whole_and_says_so(play: Play) -> None:
    played = play(
        """
        import torch
        w = torch.zeros(3, requires_grad=True)
        for _ in range(3):
            (torch.ones(8, 3) @ w - 1).pow(2).mean().backward()
        """
    )
    assert played.outcome.exit_code == 0
    (notice,) = played.outcome.notices
    for part in ("train.py:5", "no faster than one", "model(x)"):
        assert part in notice


# -- the slice view ----------------------------------------------------------------------------------------------------

SLICES = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(11, 3), torch.randn(11, 1))
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        before = loss.item()
        loss.backward()
        print(f"{before:.5f} {loss.item():.5f} {model.weight.grad.norm():.5f}", len(x))
        optimizer.step()
"""


def test_in_the_slice_view_losses_and_gradients_are_of_the_whole_batch(play: Play) -> None:
    expected = [line.split() for line in play(SLICES, workers=1).well.printed.splitlines()]
    played = play(SLICES, workers=2, mods=("view=slice",)).well
    found = [line.split() for line in played.printed.splitlines()]
    assert [line[:3] for line in found] == [line[:3] for line in expected]
    assert [line[3] for line in found] == ["2", "2", "1"], "rank 0's slice of each batch"
    assert any("Slice view" in notice for notice in played.notices), "and the run says so"


# -- batch × N ---------------------------------------------------------------------------------------------------------


def test_batch_scale_multiplies_the_global_batch(play: Play) -> None:
    played = play(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.arange(20.0).view(20, 1)), batch_size=3)
        model = torch.nn.Linear(1, 1)
        for (x,) in loader:
            model(x).sum().backward()
            print(len(x), end=" ")
        print("of", len(loader))
        """,
        workers=2,
        batch="scale",
    ).well
    assert played.printed == "6 6 6 2 of 4\n"


def test_a_step_that_calls_the_step_of_its_base_class_is_one_step(play: Play) -> None:
    """torch runs its step hooks twice, for both classes."""
    played = play(
        """
        import torch
        class Own(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)
        model = torch.nn.Linear(3, 1)
        torch.optim.SGD(model.parameters(), lr=0.1)  # from here on, torch's hooks run in the step of SGD itself
        optimizer = Own(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).mean().backward()
            optimizer.step()
        """,
        workers=2,
    ).well
    assert played.outcome.steps == 3
