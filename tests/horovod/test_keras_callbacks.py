"""Horovod's Keras callbacks and optimizer on one rank. Needs Keras (`make test-frameworks` installs it); two ranks
against the whole batch: tests/frameworks/programs/horovod_keras.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "torch":
    pytest.skip("Keras has another backend", allow_module_level=True)

import numpy as np  # noqa: E402
import torch  # noqa: E402

import paceline.horovod.keras as hvd  # noqa: E402

X = np.arange(64, dtype="float32").reshape(16, 4) / 64
Y = X.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def begun() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def rates() -> list[tuple[float, float]]:
    """The learning rate and the momentum of every step."""
    return []


def fit(optimizer: Any, rates: list[tuple[float, float]], *callbacks: Any, epochs: int = 4) -> Any:
    class Noted(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            rates.append((round(float(optimizer.learning_rate), 6), round(optimizer.momentum, 6)))

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    return model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, shuffle=False, callbacks=[*callbacks, Noted()])


def test_a_schedule_changes_the_rate_between_its_epochs(rates: list[tuple[float, float]]) -> None:
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=1, end_epoch=3)
    history = fit(keras.optimizers.SGD(0.1), rates, schedule)
    assert [rate for rate, _ in rates] == [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]
    assert history.history["lr"] == pytest.approx([0.1, 0.1, 0.05, 0.05])


def test_momentum_is_corrected_in_the_step_in_which_the_rate_changes(rates: list[tuple[float, float]]) -> None:
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=lambda epoch: 1.0 if epoch < 2 else 0.5)
    fit(optimizer := keras.optimizers.SGD(0.1, momentum=0.8), rates, schedule)
    assert [momentum for _, momentum in rates] == [0.8, 0.8, 0.8, 0.8, 0.4, 0.8, 0.8, 0.8]
    assert optimizer.momentum == 0.8


def test_warm_up_ends_at_the_full_rate(
    rates: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.horovod.keras.callbacks.hvd.size", lambda: 4)
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1, momentum_correction=False)
    fit(keras.optimizers.SGD(0.4), rates, warm_up, epochs=3)
    assert [rate for rate, _ in rates] == pytest.approx([0.175, 0.25, 0.325, 0.4, 0.4, 0.4], abs=1e-6)
    assert "Epoch 2: finished gradual learning rate warmup to 0.4." in capsys.readouterr().out


def test_the_best_model_is_kept_and_loads_without_horovod(tmp_path: Path) -> None:
    keeper = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="set its filepath"):
        fit(keras.optimizers.SGD(0.1), [], keeper)
    keeper.filepath = str(tmp_path / "best.keras")
    fit(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)), [], keeper)
    plain = keras.models.load_model(keeper.filepath)
    assert type(plain.optimizer) is type(keras.optimizers.SGD())
    assert plain.optimizer.momentum == 0.5
    loaded = hvd.load_model(keeper.filepath)
    assert loaded.optimizer.reduction.name == "DistributedSGD"
    assert int(loaded.optimizer.iterations) == int(plain.optimizer.iterations) > 0


def test_gradients_of_several_passes_are_applied_together() -> None:
    weight = keras.Variable(np.zeros(2, dtype="float32"))
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    with torch.no_grad():
        optimizer.apply([torch.tensor([1.0, 2.0])], [weight])
        assert weight.numpy().tolist() == [0, 0]
        optimizer.apply([torch.tensor([3.0, 4.0])], [weight])
    assert weight.numpy().tolist() == [-2, -3]


def test_what_cannot_be_had_is_refused() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    with pytest.raises(ValueError, match="op currently only supports Average and Sum"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    with pytest.raises(ValueError, match="groups should be"):
        hvd.DistributedOptimizer(optimizer, groups=-1)
    with pytest.raises(ValueError, match="must be Keras layers"):
        hvd.PartialDistributedOptimizer(optimizer, local_layers=[1])
    with pytest.raises(ValueError, match="must be Keras variables"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[1])
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.1)
