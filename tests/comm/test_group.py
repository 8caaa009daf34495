"""The collectives between workers: what each gives, for every kind of tensor that a script may hold."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import alone

from paceline.comm.group import Group
from paceline.comm.memory.flats import as_bytes
from paceline.comm.pulse import Pulse
from paceline.comm.stopwatch import Stopwatch
from paceline.errors import PartedError, PeerLostError
from paceline.settings import RunSettings, WorkerSettings

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SUMMED = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.complex64, torch.complex128)
MOVED = (*SUMMED, torch.bool, torch.int8, torch.int16)
WORLDS = (2, 3, 5)


def values(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small whole numbers that differ by rank: sums of them are exact in every dtype."""
    count = 1
    for size in shape:
        count *= size
    whole = (torch.arange(count) % 4 + rank).view(shape)
    if dtype.is_complex:
        return torch.complex(whole.float(), -whole.float()).to(dtype)
    return (whole % 2 == 0) if dtype is torch.bool else whole.to(dtype)


# -- all_reduce --------------------------------------------------------------------------------------------------------


def reduced(group: Group, dtype: torch.dtype, shape: tuple[int, ...], pick: str) -> torch.Tensor:
    tensor = picked(values(group.rank, dtype, *shape), pick)
    group.all_reduce(tensor, "a test")
    return tensor


def picked(tensor: torch.Tensor, pick: str) -> torch.Tensor:
    match pick:
        case "transposed":
            return tensor.transpose(0, -1)
        case "every second":
            return tensor[::2]
    return tensor


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
def test_a_sum_is_the_sum_in_every_dtype(pool: Any, dtype: torch.dtype) -> None:
    expected = sum(values(rank, dtype, 3, 4) for rank in range(3))
    for found in pool(3).run(reduced, dtype, (3, 4), "as it is"):
        assert found.dtype is dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize("pick", ["transposed", "every second"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_a_sum_is_written_into_a_tensor_with_gaps(pool: Any, dtype: torch.dtype, pick: str) -> None:
    expected = picked(sum(values(rank, dtype, 4, 6) for rank in range(2)), pick)
    for found in pool(2).run(reduced, dtype, (4, 6), pick):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (1, 1, 1)], ids=str)
def test_a_sum_of_odd_shapes(pool: Any, shape: tuple[int, ...]) -> None:
    expected = sum(values(rank, torch.float32, *shape) for rank in range(2))
    for found in pool(2).run(reduced, torch.float32, shape, "as it is"):
        assert torch.equal(found, expected)


def reduced_halves(group: Group) -> bool:
    """2048 + 1 is 2048 in half precision. In every stretch of the tensor each worker brings the large number once: in
    whatever order they are added, some sums meet it early."""
    tensor = torch.ones(group.world, group.world, dtype=torch.float16)
    tensor[:, group.rank] = 2048.0
    group.all_reduce(tensor, "a test")
    return bool((tensor == 2052.0).all())


def test_half_types_are_summed_in_single_precision(pool: Any) -> None:
    assert pool(5).run(reduced_halves) == [True] * 5


@pytest.mark.parametrize("world", WORLDS)
def test_a_sum_over_any_number_of_workers(pool: Any, world: int) -> None:
    expected = sum(values(rank, torch.float64, 7) for rank in range(world))
    for found in pool(world).run(reduced, torch.float64, (7,), "as it is"):
        assert torch.equal(found, expected)


def reduced_with_graph(group: Group) -> tuple[torch.Tensor, bool]:
    parameter = torch.ones(3, requires_grad=True)
    buffer = (parameter * group.rank).detach()
    group.all_reduce(buffer, "a test")
    return buffer, parameter.requires_grad


def test_a_sum_leaves_the_graph_alone(pool: Any) -> None:
    for found, still in pool(2).run(reduced_with_graph):
        assert torch.equal(found, torch.ones(3))
        assert still


# -- buckets: started now, finished later ------------------------------------------------------------------------------


def started(group: Group) -> list[torch.Tensor]:
    tensors = [values(group.rank, dtype, 5 + i) for i, dtype in enumerate(FLOATS)]
    pending = [group.start_all_reduce(tensor) for tensor in tensors]
    between = torch.ones(1)
    group.all_reduce(between, "rows, while buckets are under way")
    for each in reversed(pending):
        each.finish("a test")
    return [*tensors, between]


def test_buckets_travel_beside_rows_and_are_finished_in_any_order(pool: Any) -> None:
    expected = [sum(values(rank, dtype, 5 + i) for rank in range(3)) for i, dtype in enumerate(FLOATS)]
    for found in pool(3).run(started):
        assert all(torch.equal(a, b) for a, b in zip(found, [*expected, torch.tensor([3.0])], strict=True))


# -- broadcast ---------------------------------------------------------------------------------------------------------


def broadcast(group: Group, dtype: torch.dtype, shape: tuple[int, ...], pick: str) -> torch.Tensor:
    tensor = picked(values(group.rank + 1, dtype, *shape), pick)
    group.broadcast(tensor, "a test")
    return tensor


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_everybody_gets_rank_0s_values_in_every_dtype(pool: Any, dtype: torch.dtype) -> None:
    for found in pool(3).run(broadcast, dtype, (3, 4), "as it is"):
        assert found.dtype is dtype
        assert torch.equal(found, values(1, dtype, 3, 4))


@pytest.mark.parametrize("pick", ["transposed", "every second"])
def test_values_are_written_into_a_tensor_with_gaps(pool: Any, pick: str) -> None:
    for found in pool(2).run(broadcast, torch.float32, (4, 6), pick):
        assert torch.equal(found, picked(values(1, torch.float32, 4, 6), pick))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 1)], ids=str)
def test_broadcast_of_odd_shapes(pool: Any, shape: tuple[int, ...]) -> None:
    for found in pool(2).run(broadcast, torch.float32, shape, "as it is"):
        assert torch.equal(found, values(1, torch.float32, *shape))


def broadcast_parameter(group: Group) -> tuple[torch.Tensor, bool, bool]:
    parameter = torch.nn.Parameter(torch.full((2, 2), float(group.rank + 1)))
    memory = parameter.data_ptr()
    group.broadcast(parameter, "a test")
    return parameter.detach(), parameter.requires_grad, parameter.data_ptr() == memory


def test_a_parameter_stays_the_parameter_that_it_was(pool: Any) -> None:
    for found, requires_grad, same_memory in pool(2).run(broadcast_parameter):
        assert torch.equal(found, torch.ones(2, 2))
        assert requires_grad
        assert same_memory


# -- gathering ---------------------------------------------------------------------------------------------------------


def gathered(
    group: Group, dtype: torch.dtype, dim: int, sizes: list[int], rest: tuple[int, ...], pick: str
) -> torch.Tensor:
    shape = [*rest[:dim], sizes[group.rank], *rest[dim:]]
    rows = values(group.rank, dtype, *shape)
    if pick == "with gaps":
        rows = torch.stack([rows, rows], -1)[..., 0]
    return group.gather_rows(rows, dim, sizes, "a test")


def whole(dtype: torch.dtype, dim: int, sizes: list[int], rest: tuple[int, ...]) -> torch.Tensor:
    return torch.cat([values(r, dtype, *rest[:dim], size, *rest[dim:]) for r, size in enumerate(sizes)], dim)


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_rows_are_put_side_by_side_in_every_dtype(pool: Any, dtype: torch.dtype) -> None:
    for found in pool(3).run(gathered, dtype, 0, [2, 1, 2], (3,), "as it is"):
        assert found.dtype is dtype
        assert torch.equal(found, whole(dtype, 0, [2, 1, 2], (3,)))


@pytest.mark.parametrize("pick", ["as it is", "with gaps"])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("sizes", [[2, 2, 2], [1, 2, 2], [0, 1, 0], [0, 0, 0], [3, 0, 1]], ids=str)
def test_uneven_rows_along_any_dimension(pool: Any, sizes: list[int], dim: int, pick: str) -> None:
    for found in pool(3).run(gathered, torch.float32, dim, sizes, (2, 3), pick):
        assert torch.equal(found, whole(torch.float32, dim, sizes, (2, 3)))


def test_rows_without_content(pool: Any) -> None:
    for found in pool(2).run(gathered, torch.float32, 0, [2, 3], (0,), "as it is"):
        assert found.shape == (5, 0)


def gathered_vectors(group: Group) -> torch.Tensor:
    return group.gather_vectors(torch.tensor([group.rank, 7.5], dtype=torch.float64), "a test")


@pytest.mark.parametrize("world", WORLDS)
def test_vectors_come_a_row_a_worker(pool: Any, world: int) -> None:
    expected = torch.tensor([[rank, 7.5] for rank in range(world)], dtype=torch.float64)
    assert all(torch.equal(found, expected) for found in pool(world).run(gathered_vectors))


def gathered_objects(group: Group) -> list[Any]:
    return group.gather_objects({"rank": group.rank, "text": "x" * group.rank * 1000}, "a test")


def test_objects_of_different_sizes(pool: Any) -> None:
    expected = [{"rank": rank, "text": "x" * rank * 1000} for rank in range(3)]
    assert pool(3).run(gathered_objects) == [expected] * 3


# -- one worker --------------------------------------------------------------------------------------------------------


def test_with_one_worker_everything_is_the_identity_and_nothing_is_connected() -> None:
    group = Group(WorkerSettings(run=RunSettings(script=""), record=""))
    tensor = torch.tensor([1.5, 2.0])
    group.all_reduce(tensor, "a test")
    group.broadcast(tensor, "a test")
    assert tensor.tolist() == [1.5, 2.0]
    assert group.gather_rows(tensor, 0, [2], "a test").tolist() == [1.5, 2.0]
    assert group.gather_vectors(tensor, "a test").tolist() == [[1.5, 2.0]]
    assert group.gather_objects("me", "a test") == ["me"]


# -- what the script sees, and what the stall inspector sees -----------------------------------------------------------


def script_asks(group: Group) -> bool:
    return dist.is_initialized()


def test_the_script_still_has_no_process_group(pool: Any) -> None:
    assert pool(2).run(script_asks) == [False, False]


def told(group: Group) -> tuple[int, str, list[str], str]:
    names: list[str] = []
    plain_pulse, plain_watch = group.pulse, group.watch
    group.pulse, group.watch = NamedPulse(names), Stopwatch()
    try:
        group.all_reduce(torch.ones(1), "the first")
        group.gather_objects(1, "the second")
        return group.pulse.collectives, group.pulse.waiting, names, group.watch.phase
    finally:
        group.pulse, group.watch = plain_pulse, plain_watch


class NamedPulse(Pulse):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def enter(self, collective: str) -> None:
        super().enter(collective)
        self.names.append(collective)


def test_the_pulse_names_what_a_worker_waits_for(pool: Any) -> None:
    for collectives, waiting, names, phase in pool(2).run(told):
        assert names == ["the first", "the second", "the second"]
        assert collectives == 3
        assert waiting == ""
        assert phase == "other"


def timed(group: Group, phase: str) -> dict[str, float]:
    plain, group.watch = group.watch, Stopwatch()
    try:
        group.watch.enter(phase)
        group.all_reduce(torch.ones(1), "a test")
        group.watch.leave()
        group.watch.lap(None)
        return group.watch.laps()[0][0]
    finally:
        group.watch = plain


def test_waiting_is_communication_unless_the_model_is_being_evaluated(pool: Any) -> None:
    assert all(laps.keys() == {"other", "forward", "communication"} for laps in pool(2).run(timed, "forward"))
    assert all(laps.keys() == {"other", "evaluation"} for laps in pool(2).run(timed, "evaluation"))


# -- faults ------------------------------------------------------------------------------------------------------------


def wait_for_the_others(group: Group) -> None:
    group.all_reduce(torch.ones(1), "the sum that never comes")


def test_a_lost_peer_is_named_as_such() -> None:
    with alone(2) as pool:
        pool.run(reduced, torch.float32, (1,), "as it is")
        pool.kill(1)
        with pytest.raises(PeerLostError, match="the sum that never comes"):
            pool.run(wait_for_the_others)


def part(group: Group, sizes: tuple[int, int]) -> None:
    group.all_reduce(torch.ones(sizes[group.rank]), "a sum of different sizes")


@pytest.mark.parametrize("sizes", [(1, 1000), (1000, 1)], ids=str)
def test_workers_in_different_collectives_do_not_go_on(sizes: tuple[int, int]) -> None:
    """Gloo ends the process that gets more than it expects; the launcher says what that means."""
    with alone(2) as pool, pytest.raises((PartedError, RuntimeError), match=r"different collectives|died"):
        pool.run(part, sizes)


def over(group: Group, backend: str) -> Group:
    if backend == "memory":
        return group
    run = replace(group._settings.run, backend=backend)
    return Group(replace(group._settings, run=run), store=group.store("another backend"))


def out_of_step(group: Group, backend: str) -> str:
    """The last worker leaves out an exchange; what the workers would exchange differs in kind."""
    group = over(group, backend)
    group.gather_objects([1, 2], "the first vote")
    try:
        if group.rank < group.world - 1:
            group.gather_objects([group.rank], "the roles of outputs")
        group.gather_objects(True, "the end of the vote")
    except PartedError as error:
        return str(error)
    return "went on"


@pytest.mark.parametrize("backend", ["memory", "gloo"])
@pytest.mark.parametrize("world", [2, 3])
def test_exchanges_of_objects_out_of_step_name_the_labels_of_all_workers(backend: str, world: int) -> None:
    with alone(world) as pool:
        found = pool.run(out_of_step, backend)
    for text in found:
        assert "different collectives" in text
        for rank in range(world):
            label = "the end of the vote" if rank == world - 1 else "the roles of outputs"
            assert re.search(rf"worker {rank}: {label}[^;]* at [^;]*test_group\.py:\d+", text), text


def objects_and_numbers(group: Group) -> str:
    """Over Gloo, which compares nothing: the vector has as many bytes as the head of an exchange of objects."""
    group = over(group, "gloo")
    try:
        if group.rank:
            group.gather_vectors(torch.tensor([3, 1 << 60]), "two numbers")
        else:
            group.gather_objects(["a"], "some objects")
    except PartedError as error:
        return str(error)
    return "went on"


def test_an_exchange_of_objects_does_not_take_numbers_for_sizes() -> None:
    with alone(2) as pool:
        first, _ = pool.run(objects_and_numbers)
    assert re.search(r"worker 0: some objects at .*test_group\.py:\d+; worker 1: another collective", first)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 1), (2, 3)], ids=str)
def test_bytes_of_a_tensor_with_odd_strides(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    odd = torch.as_strided(
        tensor, shape, [7 if size <= 1 else stride for size, stride in zip(shape, tensor.stride(), strict=True)]
    )
    assert torch.equal(as_bytes(odd).view(torch.float32), tensor.flatten())


def told_weights(group: Group) -> list[torch.Tensor]:
    weights = [
        torch.full((4, 1, 3, 3), float(group.rank + 1)).to(memory_format=torch.channels_last),  # in a row both ways
        torch.full((4, 2, 3, 3), float(group.rank + 1)).to(memory_format=torch.channels_last),
        torch.full((3, 5), float(group.rank + 1)).t(),
    ]
    for weight in weights:
        group.broadcast(weight, "weights")
    return weights


def test_weights_that_lie_otherwise_in_memory_are_rank_0s_too(pool: Any) -> None:
    for weights in pool(2).run(told_weights):
        assert all(bool((weight == 1).all()) for weight in weights)
