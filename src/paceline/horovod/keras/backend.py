"""Keras 3, on its torch backend: the only one that Paceline's Horovod interface knows."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch

from paceline.horovod import torch as hvd

__all__ = ["keras", "tensor_of"]

try:
    import keras
except ImportError as error:
    raise ImportError(
        f"horovod.keras needs Keras 3 on its torch backend, and Keras cannot be imported: {error}. Type: pip install "
        "keras, and set the environment variable KERAS_BACKEND=torch."
    ) from error

if getattr(keras, "backend", None) is None or keras.backend.backend() != "torch":
    raise ImportError(
        f"horovod.keras needs Keras 3 on its torch backend, and the backend of Keras {keras.__version__} is "
        f"{keras.backend.backend()}. Set the environment variable KERAS_BACKEND=torch before the script starts."
    )


def tensor_of(value: Any) -> Any:
    """The torch tensor of a number, an array, a tensor or a Keras variable; without its history."""
    return keras.ops.convert_to_tensor(value).detach()


# -- variables --------------------------------------------------------------------------------------------------------


def broadcast_variables(variables: Iterable[Any], root_rank: int, *, prefix: str = "variables") -> None:
    """Gives the variables the values that they have on rank `root_rank`. Every rank calls it with the same ones."""
    sent = []
    for number, variable in enumerate(variables):
        value = tensor_of(variable).clone()
        handle = hvd.broadcast_async_(value, root_rank, name=f"{prefix}.{number}.{variable.path}")
        sent.append((variable, handle))
    with torch.no_grad():
        for variable, handle in sent:
            variable.assign(hvd.synchronize(handle))


def broadcast_global_variables(root_rank: int) -> None:
    """Gives the weights of every Keras model of this process the values that they have on rank `root_rank`, and the
    state of its optimizer. Keras 3 knows no global variables: models are found by name."""
    for model in sorted(_models(), key=lambda model: str(model.name)):
        broadcast_model(model, root_rank)


def broadcast_model(model: Any, root_rank: int, left_out: Iterable[Any] = ()) -> None:
    """Broadcasts the weights of a model and its optimizer's state, as far as they are made. Seeds of random layers stay
    different: each rank drops other units."""
    own = {id(variable) for variable in left_out}
    weights = [variable for variable in model.weights if id(variable) not in own]
    broadcast_variables(weights, root_rank, prefix=f"{model.name}.weights")
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        broadcast_variables(optimizer.variables, root_rank, prefix=f"{model.name}.optimizer")


def _models() -> list[Any]:
    return [thing for thing in gc.get_objects() if isinstance(thing, keras.Model) and thing.built]
