"""Turns a state (nested dicts, lists, numbers, text, tensors) into JSON with references to tensors, and back.

No pickle: a value that is not on the list below is refused with its place in the state. What JSON lacks is written as
an object with one key that begins with `$`.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline.checkpoint import safetensors_file
from paceline.errors import CheckpointError
from paceline.torch_private import is_dtensor

DICTS = (dict, OrderedDict, defaultdict)


class Encoder:
    """Encodes states. `tensors` are those that the states refer to, by name, each storage once."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[Any, str] = {}

    def encode(self, value: Any, place: str) -> Any:
        """The JSON of a value. `place` says where the value was found, and names its tensors."""
        if value is None or (isinstance(value, (bool, str)) and type(value) in (bool, str)):
            return value
        if type(value) is int:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._name(value, place)}
        if type(value) in DICTS:
            return self._dict(value, place)
        if type(value) is list:
            return [self.encode(item, f"{place}.{number}") for number, item in enumerate(value)]
        return self._other(value, place)

    def _dict(self, value: dict[Any, Any], place: str) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, below(place, key)) for key, item in value.items()}
        pairs = [(self.encode(key, f"{place} (key)"), key, item) for key, item in value.items()]
        return {"$dict": [[code, self.encode(item, below(place, key))] for code, key, item in pairs]}

    def _other(self, value: Any, place: str) -> Any:
        def listed(items: Any) -> list[Any]:
            return [self.encode(item, f"{place}.{number}") for number, item in enumerate(items)]

        if type(value) is tuple:
            return {"$tuple": listed(value)}
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        if type(value) in (set, frozenset):
            return {"$set": listed(sorted(value, key=repr))}
        if type(value) is Counter:
            return {"$counter": [[self.encode(key, place), number] for key, number in value.items()]}
        if type(value) is complex:
            return {"$complex": [repr(value.real), repr(value.imag)]}
        if type(value) in (bytes, bytearray):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"$dtype": safetensors_file.name_of(value)}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return {"$numpy": [value.dtype.str, base64.b64encode(value.tobytes()).decode(), None]}
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return {"$numpy": [value.dtype.str, base64.b64encode(value.tobytes()).decode(), list(value.shape)]}
        raise CheckpointError(
            f"{place} is a {type(value).__module__}.{type(value).__name__}, which a checkpoint cannot hold.",
            advice="Store tensors, numbers, text, and lists, tuples and dicts of these.",
        )

    def _name(self, tensor: torch.Tensor, place: str) -> str:
        if why := safetensors_file.refusal(tensor):
            raise CheckpointError(f"{place} {why}.", advice="Store a dense tensor with numbers.")
        key = _identity(tensor)
        if key is not None and key in self._names:
            return self._names[key]
        name, number = place, 1
        while name in self.tensors:  # two places may have the same text: {"a.b": …} and {"a": {"b": …}}
            number += 1
            name = f"{place}#{number}"
        self.tensors[name] = tensor
        if key is not None:
            self._names[key] = name
        return name


def below(place: str, key: Any) -> str:
    """The place of an entry. The first level, the part's name, is set off by a slash."""
    return f"{place}.{key}" if "/" in place else f"{place}/{key}"


def _identity(tensor: torch.Tensor) -> Any:
    """Equal for two tensors that are the same memory, such as tied weights. Workers must find the same ones equal, and
    a worker's part of a DTensor may be empty: there only the same object counts."""
    if is_dtensor(tensor) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return id(tensor)
    if not tensor.numel():
        return None
    view = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (tensor.untyped_storage().data_ptr(), str(tensor.device), *view, tensor.is_conj(), tensor.is_neg())


def decode(code: Any, tensor: Callable[[str], Any]) -> Any:
    """The value of a code. `tensor` makes the tensor of a name."""
    if isinstance(code, list):
        return [decode(item, tensor) for item in code]
    if not isinstance(code, dict):
        return code
    if len(code) != 1 or not next(iter(code)).startswith("$"):
        return {key: decode(item, tensor) for key, item in code.items()}
    ((kind, held),) = code.items()
    if kind == "$tensor":
        return tensor(held)
    if kind in ("$tuple", "$set"):
        items = [decode(item, tensor) for item in held]
        return tuple(items) if kind == "$tuple" else set(items)
    if kind in ("$dict", "$counter"):
        made = {decode(key, tensor): decode(item, tensor) for key, item in held}
        return made if kind == "$dict" else Counter(made)
    return _VALUES[kind](held)


def _numpy(held: Any) -> Any:
    dtype, raw, shape = held
    array = np.frombuffer(base64.b64decode(raw), dtype=np.dtype(dtype)).copy()
    return array[0] if shape is None else array.reshape(shape)


_VALUES: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$size": torch.Size,
    "$complex": lambda held: complex(float(held[0]), float(held[1])),
    "$bytes": base64.b64decode,
    "$dtype": safetensors_file.dtype_of,
    "$device": torch.device,
    "$numpy": _numpy,
}


def references(code: Any) -> list[str]:
    """The names of the tensors that a code refers to, in their order."""
    names: list[str] = []
    decode(code, names.append)
    return names
