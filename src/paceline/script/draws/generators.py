"""Random generators that a model may use besides the global streams: numpy's and Python's generator objects, in
attributes of its modules and in variables that its code can reach. (Draws tell of torch's generators themselves.)"""

from __future__ import annotations

import itertools
import pickle
import random
import types
import zlib
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.script.proof.reach import Reach, attributes, variables

KINDS = (np.random.Generator, np.random.RandomState, random.Random)
CLOSED = (torch.Tensor, nn.Module, type, types.ModuleType, types.FunctionType)  # modules are looked at one by one
DEPTH = 2  # of lists, dictionaries and objects in which a generator may be
MANY = 100  # their items that are looked at


class Generators:
    """The generators that a module can reach, as they are when this is made."""

    def __init__(self, module: nn.Module, reach: Reach, kinds: tuple[type, ...] = KINDS) -> None:
        found: dict[int, Any] = {}
        held = (value for *_, value in itertools.chain(attributes(module), variables(module, reach)))
        for value in held:
            _find(value, found, kinds, DEPTH)
        self._states = [(generator, _state(generator)) for generator in found.values()]

    def digest(self) -> int:
        """A checksum of their present states."""
        return zlib.crc32(b"".join(pickle.dumps(generator) for generator, _ in self._states))

    def advance(self) -> None:
        """Draws one number from each."""
        for generator, _ in self._states:
            generator.random()

    def restore(self) -> None:
        for generator, state in self._states:
            if isinstance(generator, random.Random):
                generator.setstate(state)
            elif isinstance(generator, np.random.Generator):
                generator.bit_generator.state = state
            else:
                generator.set_state(state)


def _find(held: Any, found: dict[int, Any], kinds: tuple[type, ...], depth: int) -> None:
    if isinstance(held, kinds):
        if not isinstance(held, random.SystemRandom):  # has no state
            found[id(held)] = held
    elif depth and not isinstance(held, CLOSED):
        for inner in _inside(held):
            _find(inner, found, kinds, depth - 1)


def _inside(held: Any) -> Any:
    if isinstance(held, (list, tuple)):
        return held[:MANY]
    if isinstance(held, dict):
        return list(held.values())[:MANY]
    return list(getattr(held, "__dict__", {}).values())[:MANY]


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()
