"""The callbacks of `horovod.keras.callbacks`, for `model.fit(callbacks=[…])`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.horovod import torch as hvd
from paceline.horovod.keras.backend import broadcast_model, keras

Multiplier = Callable[[float], float]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer's state of rank `root_rank`: before the first batch, and, for what
    Keras only makes in it, once more after it."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        alone = isinstance(local_variables, keras.Variable)
        self._local: list[Any] = [local_variables] if alone else list(local_variables or ())
        if not all(isinstance(variable, keras.Variable) for variable in self._local):
            raise ValueError("local_variables: all local variables must be Keras variables.")

    def register_local_var(self, var: Any) -> None:
        """This variable is not broadcast."""
        self._local.append(var)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.broadcast_done and self.model.built:
            broadcast_model(self.model, self.root_rank, self._local)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.broadcast_done:
            broadcast_model(self.model, self.root_rank, self._local)
            self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all ranks. Callbacks that read metrics (ReduceLROnPlateau, TensorBoard)
    come after this one in the list."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None:
            return
        sent = {}
        for name in sorted(logs):
            value = torch.tensor(float(logs[name]), dtype=torch.float64, device="cpu")
            sent[name] = hvd.allreduce_async_(value, name=f"MetricAverageCallback.{name}", op=hvd.Average)
        for name, handle in sent.items():
            logs[name] = hvd.synchronize(handle).item()


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` from `start_epoch` until before `end_epoch`: at the
    beginning of each epoch, or with `staircase=False` of each batch, where epoch is a fraction. A constant multiplier
    is an exponential decay. With `momentum_correction` the momentum is scaled in a batch in which the rate changes."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.restore_momentum: float | None = None
        self.multiplier: Multiplier
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            constant = multiplier
            self.multiplier = lambda epoch: constant ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} cannot tell how many steps an epoch has: give it steps_per_epoch=…"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._set_rate(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set_rate(self.current_epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.restore_momentum:
            self.model.optimizer.momentum = self.restore_momentum
        self.restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(self.model.optimizer.learning_rate)

    def _set_rate(self, epoch: float) -> None:
        optimizer, old = self.model.optimizer, self._rate()
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        momentum = getattr(optimizer, "momentum", None)
        if self.momentum_correction and momentum and old:
            self.restore_momentum = momentum
            optimizer.momentum = momentum * new / old


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / hvd.size()` to `initial_lr`, batch by batch, in the first
    `warmup_epochs` epochs: the large batch of many ranks does not start with a large rate."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            epoch += 1.0 / self.steps_per_epoch  # so that an epoch ends with a round number
            return 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        assert self.end_epoch is not None
        if epoch == self.end_epoch - 1 and self.verbose > 0 and hvd.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the whole model when `monitor` has improved. `filepath` may be set later, before `fit`."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str | None = None,
    ) -> None:
        super().__init__(
            filepath=filepath or "model.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=False,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = filepath

    def on_train_begin(self, logs: Any = None) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no file to save to: set its filepath, such as 'best.keras'.")
        super().on_train_begin(logs)


__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
