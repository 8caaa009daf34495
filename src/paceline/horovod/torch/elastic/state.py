"""The state of a training process: models, optimizers, samplers and plain objects."""

from __future__ import annotations

import copy
from typing import Any

import torch

from paceline.horovod.common import basics
from paceline.horovod.common.elastic import ObjectState
from paceline.horovod.torch.elastic.sampler import ElasticSampler
from paceline.horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """Keeps the last committed state of one object."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """Gives all ranks rank 0's."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), name="elastic.sampler"))
        self.save()


_handlers: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Which handler an object of each type gets."""
    return _handlers


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    global _handlers
    _handlers = registry


class TorchState(ObjectState):
    """A model, an optimizer and whatever is given by keyword; each is an attribute."""

    _handlers: dict[str, StateHandler]

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = kwargs | {"model": model, "optimizer": optimizer}
        kinds = {
            name: next((h for kind, h in _handlers if isinstance(value, kind)), None) for name, value in given.items()
        }
        found = {name: handler(given.pop(name)) for name, handler in kinds.items() if handler is not None}
        self.__dict__["_handlers"] = found
        self.__dict__.update({name: handler.value for name, handler in found.items()})
        super().__init__(broadcast_object, basics.rank, **given)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
