# framework: horovod.keras
# package: keras
# program: `fit` with `DistributedOptimizer` and the callbacks; half of each batch on each rank, against the whole batch
# mask: \d+[mu]?s(/step|/epoch)?
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

try:
    import horovod.keras as hvd
except ImportError:
    hvd = None  # plain Python, without Horovod: the whole batch

if hvd is not None:
    hvd.init()
rank, size = (hvd.rank(), hvd.size()) if hvd is not None else (0, 1)

BATCH, LR = 32, 0.05
rng = np.random.default_rng(0)
x = rng.normal(size=(160, 6)).astype("float32")
y = (x[:, :1] * 2 - x[:, 1:2] + 0.1 * rng.normal(size=(160, 1))).astype("float32")
own = np.concatenate([np.arange(first, first + BATCH)[rank::size] for first in range(0, len(x), BATCH)])


def make(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(LR, momentum=0.9)
    if hvd is not None:
        optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model


model = make(seed=3 + rank)  # the broadcast makes them equal
callbacks = []
if hvd is not None:
    callbacks += [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateScheduleCallback(LR, multiplier=0.5, start_epoch=2, momentum_correction=False),
    ]
else:
    callbacks += [keras.callbacks.LearningRateScheduler(lambda e: LR * 0.5 ** (e - 2) if e >= 2 else LR)]
history = model.fit(x[own], y[own], batch_size=BATCH // size, epochs=4, shuffle=False, callbacks=callbacks, verbose=0)
print([round(v, 6) for v in history.history["loss"]])
print([round(v, 6) for v in history.history["mae"]])
print(round(float(model.optimizer.learning_rate), 6))
print([round(float(np.abs(w).sum()), 5) for w in model.get_weights()])

if rank == 0:
    model.save("model.keras")
if hvd is not None:
    hvd.allreduce(0, name="saved")
    loaded = hvd.load_model(os.path.abspath("model.keras"))
    plain = keras.models.load_model("model.keras")
    assert type(plain.optimizer) is type(keras.optimizers.SGD()), type(plain.optimizer)
else:
    loaded = keras.models.load_model("model.keras")
history = loaded.fit(x[own], y[own], batch_size=BATCH // size, epochs=2, shuffle=False, verbose=0)
losses = history.history["loss"]
if hvd is not None:
    losses = [float(hvd.allreduce(value, name=f"loss.{n}")) for n, value in enumerate(losses)]
print([round(v, 5) for v in losses], int(loaded.optimizer.iterations))

other = make(seed=8 + rank)
if hvd is not None:
    hvd.broadcast_global_variables(root_rank=0)
print([round(float(np.abs(w).sum()), 5) for w in other.get_weights()])
if hvd is not None:
    assert hvd.allgather(np.full((rank + 1, 2), rank)).shape == (size * (size + 1) // 2, 2)
    assert float(hvd.broadcast(float(rank), root_rank=size - 1)) == size - 1
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size

# Other ways to reduce the same gradients.
for how in ({"groups": 2}, {"gradient_predivide_factor": 2.0}, {"local_layers": []}, {"backward_passes_per_step": 1}):
    keras.utils.set_random_seed(5)
    small = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(LR)
    if hvd is not None:
        wrap = hvd.PartialDistributedOptimizer if "local_layers" in how else hvd.DistributedOptimizer
        optimizer = wrap(optimizer, **how)
    small.compile(optimizer=optimizer, loss="mse")
    small.fit(x[own], y[own], batch_size=BATCH // size, epochs=1, shuffle=False, verbose=0)
    print(sorted(how), [round(float(np.abs(w).sum()), 5) for w in small.get_weights()])
