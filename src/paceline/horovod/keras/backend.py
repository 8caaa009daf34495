"""Keras 3, on its torch backend: the only one that Paceline's Horovod interface knows."""

from __future__ import annotations

from typing import Any

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
