"""The state of a training process: models, optimizers, samplers and plain objects."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoint import manifest
from paceline.checkpoint.safetensors_file import Reader
from paceline.checkpoint.save import Part, save_states
from paceline.checkpoint.tree import decode
from paceline.horovod.common import basics
from paceline.horovod.common.elastic import ObjectState
from paceline.horovod.torch.elastic.sampler import ElasticSampler
from paceline.horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from paceline.settings import of_this_process


class StateHandler:
    """Keeps the last committed state of one object."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self.saved)

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

    def write(self) -> None:
        """Rank 0 writes the committed state to the disk and reads it, alone; the others get it by `sync`."""
        saving = of_this_process().run.saving
        assert saving is not None
        parts = [Part(name, "object", "", handler.saved) for name, handler in self._handlers.items()]
        save_states(Path(saving.folder), parts, step=None, extra=self._saved_state, job=saving.job)

    def read(self) -> None:
        saving = of_this_process().run.saving
        if saving is None or not saving.resume:
            return  # this run does not start from a committed state
        where = Path(saving.resume)
        found = manifest.read(where)
        reader = Reader(where, found)
        values = decode(found.extra, reader.read) or {}
        for name, handler in self._handlers.items():
            handler.saved = decode(found.parts[name]["state"], reader.read)
        self._saved_state |= {name: value for name, value in values.items() if name in self._saved_state}
        self.restore()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
