# framework: keras
# program: functional model with two inputs and two outputs, `tf.data`-free generator, learning-rate schedule, `model.save`
# mask: \d+[mu]?s(/step|/epoch)?
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(1)
words = layers.Input((12,), dtype="int32", name="words")
numbers = layers.Input((4,), name="numbers")
h = layers.Embedding(50, 16)(words)
h = layers.LSTM(16)(h)
h = layers.Concatenate()([h, layers.Dense(8, activation="gelu")(numbers)])
h = layers.LayerNormalization()(layers.Dropout(0.2)(h))
kind = layers.Dense(3, name="kind")(h)
price = layers.Dense(1, name="price")(h)
model = keras.Model([words, numbers], {"kind": kind, "price": price})

rng = np.random.default_rng(1)
w = rng.integers(0, 50, (96, 12))
n = rng.normal(size=(96, 4)).astype("float32")
k = rng.integers(0, 3, 96)
p = n.sum(1, keepdims=True)
data = torch.utils.data.TensorDataset(torch.tensor(w), torch.tensor(n), torch.tensor(k), torch.tensor(p))


def collate(rows):
    a, b, c, d = (torch.stack(column) for column in zip(*rows))
    return {"words": a, "numbers": b}, {"kind": c, "price": d}


loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate)
schedule = keras.optimizers.schedules.CosineDecay(1e-2, 18)
model.compile(
    optimizer=keras.optimizers.AdamW(schedule, weight_decay=1e-3, clipnorm=1.0),
    loss={"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "price": "mse"},
    loss_weights={"kind": 1.0, "price": 0.5},
    metrics={"kind": "accuracy", "price": "mae"},
)
history = model.fit(loader, epochs=3, verbose=0)
for name, values in sorted(history.history.items()):
    print(name, [round(float(v), 6) for v in values])
model.save("model.keras")
again = keras.saving.load_model("model.keras")
out = again.predict({"words": w[:7], "numbers": n[:7]}, verbose=0)
print(f"{out['kind'].sum():.6f} {out['price'].sum():.6f}")
