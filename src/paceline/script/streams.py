"""States of random-number streams as JSON: the script's own streams, and generators that an object holds."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import torch

from paceline.script import rng

DEPTH = 3  # of attributes that are searched for generators


def encoded(snapshot: tuple[Any, ...] | None = None) -> dict[str, Any]:
    """The script's streams (torch on the CPU and on the current GPU if that is in use, numpy, random), as they are now
    or as they were in a snapshot of `rng`."""
    states, python, numpy = snapshot or rng.snapshot()
    torchs = [_text(state.numpy().tobytes()) for state in states]
    return {"torch": torchs, "python": _python(python), "numpy": _numpy(numpy)}


def restore(code: dict[str, Any]) -> None:
    """Sets the script's streams. A GPU's state is left out where no GPU is in use."""
    states = [torch.frombuffer(bytearray(_bytes(text)), dtype=torch.uint8) for text in code["torch"]]
    kept = states if torch.cuda.is_initialized() else states[:1]
    rng.restore((kept, _python_state(code["python"]), _numpy_state(code["numpy"])))


def generators_in(*objects: Any) -> list[Any]:
    """The random generators that these objects hold, also in attributes of attributes; each once, in a fixed order."""
    found: list[Any] = []
    seen: set[int] = set()
    for thing in objects:
        _search(thing, DEPTH, found, seen)
    return found


def _search(thing: Any, depth: int, found: list[Any], seen: set[int]) -> None:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
        found.append(thing)
    elif depth and hasattr(thing, "__dict__") and not isinstance(thing, (type, torch.Tensor)) and not _is_data(thing):
        for value in list(vars(thing).values()):
            _search(value, depth - 1, found, seen)


def _is_data(thing: Any) -> bool:
    """A dataset has many objects, and its generators draw while samples are loaded: they are not a sampler's."""
    return isinstance(thing, torch.utils.data.Dataset)


def state_of(generator: Any) -> Any:
    """A generator's state, as JSON."""
    if isinstance(generator, torch.Generator):
        return {"torch": _text(generator.get_state().numpy().tobytes())}
    if isinstance(generator, np.random.Generator):
        return {"bits": _listed(generator.bit_generator.state)}
    if isinstance(generator, np.random.RandomState):
        return {"numpy": _numpy(generator.get_state())}
    return {"python": _python(generator.getstate())}


def set_state(generator: Any, code: Any) -> None:
    """Sets a generator of the same kind to a state."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(_bytes(code["torch"])), dtype=torch.uint8))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = code["bits"]
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_numpy_state(code["numpy"]))
    else:
        generator.setstate(_python_state(code["python"]))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _python(state: Any) -> list[Any]:
    version, numbers, gauss = state
    return [version, _text(np.array(numbers, dtype="<u4").tobytes()), None if gauss is None else float(gauss).hex()]


def _python_state(code: list[Any]) -> Any:
    version, text, gauss = code
    numbers = np.frombuffer(_bytes(text), dtype="<u4").tolist()
    return version, tuple(numbers), None if gauss is None else float.fromhex(gauss)


def _numpy(state: Any) -> list[Any]:
    kind, numbers, position, has_gauss, gauss = state
    return [kind, _text(numbers.astype("<u4").tobytes()), int(position), int(has_gauss), float(gauss).hex()]


def _numpy_state(code: list[Any]) -> Any:
    kind, text, position, has_gauss, gauss = code
    return kind, np.frombuffer(_bytes(text), dtype="<u4").astype(np.uint32), position, has_gauss, float.fromhex(gauss)
