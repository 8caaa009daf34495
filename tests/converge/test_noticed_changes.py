"""A fused step goes on with what it prepared at the last one. Whatever a script changes in between is noticed: kernels
are told of the tensors as they are. Seen without a GPU: the launch writes down what the kernels would be told."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import paceline as pl
from paceline.converge.optimizers import layerwise
from paceline.converge.optimizers.tensor_tables import ADAPTED, DECAYED, Table
from paceline.errors import UsageError

SHAPES = [(6, 6), (3, 5), (7,), (4, 2, 3, 3), (3, 5), (0, 4), (4, 3, 1, 1), ()]


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layerwise, "_is_fused", lambda group, parameter: group["fused"] is not False)


class Noted:
    """A LAMB or LARS whose launches are written down in place of being made."""

    def __init__(self, kind: Any) -> None:
        torch.manual_seed(0)
        made = [torch.randn(shape) for shape in SHAPES]
        made[3] = made[3].to(memory_format=torch.channels_last)
        self.parameters = [nn.Parameter(tensor) for tensor in made]
        self.optimizer = kind([{"params": self.parameters[:5]}, {"params": self.parameters[5:], "adapt": False}])
        self.optimizer._fused_step = self._write_down
        self.tables: list[Table] = []
        self.told: list[tuple[Table, list[int], torch.Tensor]] = []  # a tensor's rows, and its gradient's memory

    def _write_down(self, group: dict[str, Any], table: Table, scale: Any, found: Any) -> None:
        self.tables.append(table)
        chunks = torch.bincount(table.tensor_of_chunk, minlength=table.tensors)
        assert torch.equal(chunks, (table.rows[0] + table.block - 1).div(table.block, rounding_mode="floor").clamp(1))
        assert torch.equal(table.rows[1], chunks.cumsum(0) - chunks)
        for row in table.rows.T.tolist():
            length, dtype = row[0], table.dtypes[1]
            memory = (ctypes.c_char * (length * dtype.itemsize)).from_address(row[3]) if length else b""
            grad = torch.frombuffer(memory, dtype=dtype).clone() if length else torch.empty(0)
            self.told.append((table, row, grad))

    def fresh_grads(self) -> None:
        for parameter in self.of_groups():
            parameter.grad = torch.randn_like(parameter)

    def of_groups(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def step(self) -> list[Table]:
        """The tables of this step, seen to be true."""
        self.tables, self.told = [], []
        self.optimizer.step()
        told = {row[5]: (table, row, grad) for table, row, grad in self.told}
        expected = 0
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or group["fused"] is False:
                    continue
                expected += 1
                table, row, grad = told[parameter.data_ptr()] if parameter.numel() else told[0]
                assert table.dtypes[:2] == (parameter.dtype, parameter.grad.dtype)
                state = self.optimizer.state[parameter]
                bits = ADAPTED | DECAYED if parameter.dim() > 1 else 0
                if group["adapt"] is not None:
                    bits = ADAPTED | DECAYED if group["adapt"] else DECAYED
                assert (row[0], row[2]) == (parameter.numel(), bits)
                assert row[4] == (state["step"].data_ptr() if "step" in state else 0)
                assert row[6:] == [state[name].data_ptr() for name in self.optimizer.moments]
                for name in self.optimizer.moments:
                    assert (state[name].stride(), state[name].dtype) == (parameter.stride(), table.dtypes[2])
                laid_out = torch.empty_strided(parameter.shape, parameter.stride(), dtype=grad.dtype)
                laid_out.copy_(parameter.grad)
                assert torch.equal(grad, laid_out.as_strided((parameter.numel(),), (1,)))
        assert len(self.told) == expected
        return self.tables


Change = Callable[[Noted], object]


def state_of(n: Noted) -> dict[str, Any]:
    found: dict[str, Any] = n.optimizer.state[n.parameters[1]]
    return found


def group_of(n: Noted) -> dict[str, Any]:
    found: dict[str, Any] = next(
        group for group in n.optimizer.param_groups if any(p is n.parameters[1] for p in group["params"])
    )
    return found


def put(place: Any, key: Any, value: Any) -> None:
    place[key] = value


def move(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.clone(memory_format=torch.preserve_format)


def cast(n: Noted) -> None:
    for parameter in n.parameters[:2]:
        parameter.grad = None
        parameter.data = parameter.data.bfloat16()
    n.fresh_grads()


def cast_gradient(n: Noted) -> None:
    grad = n.parameters[1].grad
    assert grad is not None
    grad.data = grad.data.half()


def turn(n: Noted) -> None:
    """A square weight that is turned where it lies, and a gradient as autograd would give it."""
    weight = n.parameters[0]
    weight.data = weight.data.t()
    weight.grad = torch.randn(6, 6).to(weight).as_strided((6, 6), weight.stride())


def meaningless(n: Noted) -> torch.Tensor:
    """As convolutions leave them: a dimension of one element is never stepped over."""
    return torch.randn_like(n.parameters[6]).as_strided((4, 3, 1, 1), (3, 1, 3, 3))


def swap_states(n: Noted) -> None:
    state, one, other = n.optimizer.state, n.parameters[1], n.parameters[4]
    state[one], state[other] = state[other], state[one]


def hand_on_state(n: Noted) -> None:
    """To a parameter that is no part of the optimizer, in the same place of the dictionary."""
    last = list(n.optimizer.state)[-1]
    n.optimizer.state[nn.Parameter(torch.zeros(()))] = n.optimizer.state.pop(last)


def load_states(n: Noted) -> None:
    members = {id(member) for member in n.of_groups()}
    for stranger in [parameter for parameter in n.optimizer.state if id(parameter) not in members]:
        del n.optimizer.state[stranger]  # torch would stumble over it
    n.optimizer.load_state_dict(copy.deepcopy(n.optimizer.state_dict()))


def replace_parameter(n: Noted) -> None:
    fresh = nn.Parameter(torch.randn(3, 5))
    fresh.grad = torch.randn(3, 5)
    members = group_of(n)["params"]
    members[:] = [fresh if member is n.parameters[1] else member for member in members]
    n.parameters[1] = fresh


def remove_parameter(n: Noted) -> None:
    group_of(n)["params"][:] = [member for member in group_of(n)["params"] if member is not n.parameters[0]]


NOTICED: dict[str, Change] = {
    "a weight that was moved": lambda n: move(n.parameters[1]),
    "weights that were cast": cast,
    "a weight that was turned": turn,
    "a gradient that was cast": cast_gradient,
    "a gradient that is missing": lambda n: setattr(n.parameters[0], "grad", None),
    "another parameter": replace_parameter,
    "a parameter less": remove_parameter,
    "parameters in another order": lambda n: group_of(n)["params"].reverse(),
    "groups in another order": lambda n: n.optimizer.param_groups.reverse(),
    "other adaptation": lambda n: put(group_of(n), "adapt", True),
    "another moment": lambda n: put(state_of(n), n.optimizer.moments[-1], torch.randn(3, 5)),
    "another moment that is equal": lambda n: put(state_of(n), n.optimizer.moments[0], torch.zeros(3, 5)),
    "a moment of another type": lambda n: put(state_of(n), n.optimizer.moments[-1], torch.randn(3, 5).bfloat16()),
    "moments of another layout": lambda n: put(state_of(n), n.optimizer.moments[0], torch.randn(5, 3).t()),
    "a moment that was moved": lambda n: move(state_of(n)[n.optimizer.moments[0]]),
    "a moment of another name": lambda n: put(state_of(n), "other", state_of(n).pop(n.optimizer.moments[0])),
    "a state of its own, equal": lambda n: put(n.optimizer.state, n.parameters[1], dict(state_of(n))),
    "a copied state": lambda n: put(n.optimizer.state, n.parameters[1], copy.deepcopy(state_of(n))),
    "a state that was emptied": lambda n: state_of(n).clear(),
    "a state that is gone": lambda n: n.optimizer.state.pop(n.parameters[1]),
    "no states": lambda n: n.optimizer.state.clear(),
    "states that were swapped": swap_states,
    "a state that is another's": hand_on_state,
    "states that were loaded": load_states,
}
TAKEN: dict[str, Change] = {  # told to the kernels, without preparing anything
    "nothing": lambda n: None,
    "gradients elsewhere": lambda n: n.fresh_grads(),
    "a gradient of another layout": lambda n: setattr(
        n.parameters[1], "grad", torch.randn(5, 3).to(n.parameters[1]).t()
    ),
    "a gradient that was moved": lambda n: move(n.parameters[1].grad),  # type: ignore[arg-type]
    "a gradient with strides that mean nothing": lambda n: setattr(n.parameters[6], "grad", meaningless(n)),
    "a rate": lambda n: put(n.optimizer.param_groups[0], "lr", 0.5),
}


@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
@pytest.mark.parametrize("change", NOTICED)
def test_what_changed_is_prepared_anew(kind: Any, change: str) -> None:
    noted = Noted(kind)
    noted.fresh_grads()
    noted.step()
    before = noted.step()
    NOTICED[change](noted)
    after = noted.step()
    assert {id(table) for table in after} != {id(table) for table in before}
    again = noted.step()
    assert [id(table) for table in again] == [id(table) for table in after]


def test_another_step_count_is_noticed() -> None:
    noted = Noted(pl.LAMB)
    noted.fresh_grads()
    noted.step()
    state_of(noted)["step"] = state_of(noted)["step"].clone()
    noted.step()


@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
@pytest.mark.parametrize("change", TAKEN)
def test_what_did_not_change_is_not_prepared_again(kind: Any, change: str) -> None:
    noted = Noted(kind)
    noted.fresh_grads()
    before = noted.step()
    TAKEN[change](noted)
    assert [id(table) for table in noted.step()] == [id(table) for table in before]


def test_a_gradient_whose_strides_mean_nothing_is_read_where_it_lies() -> None:
    noted = Noted(pl.LAMB)
    noted.fresh_grads()
    noted.step()
    for _ in range(3):
        noted.parameters[6].grad = meaningless(noted)
        noted.step()
        addresses = [row[3] for _, row, _ in noted.told]
        assert noted.parameters[6].grad.data_ptr() in addresses
    noted.fresh_grads()
    noted.step()


@given(st.sampled_from([pl.LAMB, pl.LARS]), st.lists(st.sampled_from([*NOTICED, *TAKEN]), max_size=8))
def test_kernels_are_told_the_truth_after_any_changes(kind: Any, changes: list[str]) -> None:
    noted = Noted(kind)
    noted.fresh_grads()
    noted.step()
    for change in changes:
        (NOTICED | TAKEN)[change](noted)
        noted.step()
        noted.fresh_grads()


def test_a_weight_of_which_a_part_is_left_in_its_place_is_noticed() -> None:
    noted = Noted(pl.LARS)
    noted.fresh_grads()
    (before, *_) = noted.step()
    noted.parameters[2].grad = None
    noted.parameters[2].data = noted.parameters[2].data[:4]
    noted.parameters[2].grad = torch.randn(4)
    (after, *_) = noted.step()
    assert after is not before


def test_a_form_that_was_chosen_later_is_taken() -> None:
    noted = Noted(pl.LARS)
    noted.fresh_grads()
    noted.step()
    for group in noted.optimizer.param_groups:
        group["fused"] = False
    weight = noted.parameters[0].detach().clone()
    assert noted.step() == []
    assert not torch.equal(noted.parameters[0], weight)


@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
def test_a_gradient_that_becomes_sparse_is_refused_before_anything_is_launched(kind: Any) -> None:
    noted = Noted(kind)
    noted.fresh_grads()
    noted.step()
    noted.parameters[1].grad = torch.randn(3, 5).to_sparse()
    noted.tables = []
    with pytest.raises(UsageError, match="sparse"):
        noted.optimizer.step()
    assert noted.tables == []
