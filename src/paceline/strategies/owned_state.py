"""The state of an optimizer whose parameters have owners: each worker keeps the entries of its own parameters.

To the script, and to torch's `state_dict`, it looks whole: whoever reads it outside an update gets all entries, from
their owners, until the next update. All workers run the same script, so all read at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from paceline.comm.coalesced import AT_ONCE
from paceline.comm.group import Group
from paceline.spread.stage_tensor import StageTensor


class DividedState(defaultdict[Any, Any]):
    """`optimizer.state`. Inside `updating` it holds own entries only, and outside it looks whole."""

    def __init__(self, own: dict[Any, Any], gather: Callable[[dict[Any, Any]], dict[Any, Any]]) -> None:
        super().__init__(dict, own)
        self._gather = gather
        self._whole: dict[Any, Any] | None = None
        self._updating = False

    @contextmanager
    def updating(self) -> Iterator[None]:
        self._whole, self._updating = None, True
        try:
            yield
        finally:
            self._updating = False

    def own(self) -> dict[Any, Any]:
        """This worker's entries."""
        return dict(zip(super().keys(), super().values(), strict=True))

    def _all(self) -> dict[Any, Any]:
        if self._updating:
            return self.own()
        if self._whole is None:
            self._whole = self._gather(self.own())
        return self._whole

    def __getitem__(self, key: Any) -> Any:
        whole = {} if self._updating else self._all()
        return whole[key] if key in whole else super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._all().get(key, default)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) if self._updating else key in self._all()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def keys(self) -> Any:
        return self._all().keys()

    def values(self) -> Any:
        return self._all().values()

    def items(self) -> Any:
        return self._all().items()

    def __setitem__(self, key: Any, entry: Any) -> None:
        """Of another worker's parameter, too: only the owner's entry counts."""
        super().__setitem__(key, entry)
        self._whole = None

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    def pop(self, key: Any, *default: Any) -> Any:
        entry = self.get(key, *default) if default or key in self else super().pop(key)
        super().pop(key, None)
        self._whole = None
        return entry

    def clear(self) -> None:
        super().clear()
        self._whole = None

    def __reduce__(self) -> Any:
        """A copy, or a pickle, is an ordinary whole state."""
        return defaultdict, (dict, self._all())


def divide(optimizer: Any, owners: Owners, group: Group) -> DividedState:
    """Keeps this worker's entries of the optimizer's state, if that is not yet done, and returns them. Never waits."""
    state = optimizer.state
    owners.learn(whole_parameters_of(optimizer))
    if isinstance(state, DividedState):
        return state
    others = {parameter for parameter in whole_parameters_of(optimizer) if owners[parameter] != group.rank}
    own = {key: entry for key, entry in state.items() if key not in others}
    optimizer.state = DividedState(own, lambda own: _gathered(own, optimizer, owners, group))
    divided: DividedState = optimizer.state
    return divided


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """All parameters, in the order by which a state_dict numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def whole_parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """Without those of pipeline stages, which are updated by their stage."""
    return [parameter for parameter in parameters_of(optimizer) if not isinstance(parameter, StageTensor)]


def own_state(optimizer: Any) -> dict[Any, Any]:
    """The entries that this worker keeps. Never waits."""
    state: dict[Any, Any] = optimizer.state
    return state.own() if isinstance(state, DividedState) else state


def size_of(optimizer: Any) -> int:
    """The bytes of the state that this worker keeps."""
    own = own_state(optimizer)
    values = [value for entry in own.values() for value in entry.values() if isinstance(value, torch.Tensor)]
    return sum(value.kept if isinstance(value, StageTensor) else value.nbytes for value in values)


def _gathered(own: dict[Any, Any], optimizer: Any, owners: Owners, group: Group) -> dict[Any, Any]:
    """All entries, in the order of the parameters. Every worker calls it; waits for all."""
    parameters = whole_parameters_of(optimizer)
    whole: dict[Any, Any] = {}
    for numbers in _messages(parameters):
        mine = {str(number): _packed(own[parameters[number]]) for number in numbers if parameters[number] in own}
        for rank, found in enumerate(group.gather_objects(mine, "an optimizer's state")):
            for number, packed in found.items():
                parameter = parameters[int(number)]
                if owners[parameter] == rank:
                    whole[parameter] = own[parameter] if rank == group.rank else _unpacked(packed, parameter.device)
    whole |= {key: entry for key, entry in own.items() if key not in whole}
    ordered = {parameter: whole[parameter] for parameter in parameters_of(optimizer) if parameter in whole}
    return ordered | {key: entry for key, entry in whole.items() if key not in ordered}


def _packed(entry: dict[str, Any]) -> dict[str, Any]:
    """Tensors with whether they lie on a device other than the host: Adam's step counter does not."""
    return {name: [value, isinstance(value, torch.Tensor) and not value.is_cpu] for name, value in entry.items()}


def _unpacked(packed: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if moved else value for name, (value, moved) in packed.items()}


def _messages(parameters: list[torch.Tensor]) -> Iterator[list[int]]:
    """The numbers of parameters, together up to a size."""
    numbers, size = list[int](), 0
    for number, parameter in enumerate(parameters):
        if numbers and size + parameter.nbytes > AT_ONCE:
            yield numbers
            numbers, size = [], 0
        numbers.append(number)
        size += parameter.nbytes
    if numbers:
        yield numbers


class Owners:
    """The same on every worker. An owner never changes: the optimizer's state would have to move."""

    def __init__(self, world: int) -> None:
        self._owners: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.bytes = [0] * world  # of the parameters of each worker

    def learn(self, parameters: Iterable[torch.Tensor]) -> None:
        """Gives each new parameter to the worker that has least, the largest first."""
        new = [parameter for parameter in parameters if parameter not in self._owners]
        for parameter in sorted(new, key=lambda parameter: -parameter.nbytes):
            owner = self.bytes.index(min(self.bytes))
            self._owners[parameter] = owner
            self.bytes[owner] += parameter.nbytes

    def __getitem__(self, parameter: torch.Tensor) -> int:
        return int(self._owners[parameter])
