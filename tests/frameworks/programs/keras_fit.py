# framework: keras
# program: `fit` with batch norm, dropout and callbacks; `evaluate`, `predict`, `save_weights` and `load_weights`
# mask: \d+[mu]?s(/step|/epoch)?
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(812)
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 8, 8, 1)).astype("float32")
y = (x.mean(axis=(1, 2, 3)) > 0).astype("int32") + 2 * (x[:, 0, 0, 0] > 0)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(4, activation="softmax"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [
    keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
    keras.callbacks.EarlyStopping(patience=4, restore_best_weights=True),
    keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
    keras.callbacks.CSVLogger("log.csv"),
    keras.callbacks.LambdaCallback(
        on_epoch_end=lambda e, logs: print(e, {k: round(float(v), 6) for k, v in sorted(logs.items())})
    ),
]
history = model.fit(x[:160], y[:160], batch_size=32, epochs=4, validation_split=0.2, callbacks=callbacks, verbose=2)
print([round(v, 6) for v in history.history["loss"]])
print([round(float(v), 6) for v in model.evaluate(x[160:], y[160:], verbose=0)])
p = model.predict(x[160:], batch_size=16, verbose=0)
print(p.shape, f"{p[:, 0].mean():.6f} {p.std():.6f}")
model.save_weights("final.weights.h5")
before = model.predict(x[:5], verbose=0)
model.load_weights("final.weights.h5")
print(f"{np.abs(before - model.predict(x[:5], verbose=0)).max():.6f}")
