# framework: keras
# program: a subclassed model with noise and augmentation layers, GRU, class and sample weights, `fit` with verbose output
# mask: \d+[mu]?s(/step|/epoch)?|━.*?(?= )|[\x08]+
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(3)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.flip = layers.RandomFlip("horizontal", seed=1)
        self.noise = layers.GaussianNoise(0.1)
        self.conv = layers.Conv2D(8, 3, padding="same", activation="relu")
        self.norm = layers.GroupNormalization(4)
        self.reshape = layers.Reshape((8, -1))
        self.gru = layers.Bidirectional(layers.GRU(8, dropout=0.1))
        self.drop = layers.SpatialDropout1D(0.1)
        self.head = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(1e-3))

    def call(self, x, training=False):
        x = self.noise(self.flip(x, training=training), training=training)
        x = self.reshape(self.norm(self.conv(x)))
        return self.head(self.gru(self.drop(x, training=training), training=training))


x = np.random.default_rng(0).normal(size=(96, 8, 8, 2)).astype("float32")
y = np.random.default_rng(1).integers(0, 3, 96)
model = Net()
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
h = model.fit(x, y, batch_size=24, epochs=2, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=2)
print([round(v, 6) for v in h.history["loss"]])
weights = np.linspace(0.5, 1.5, 96)
h = model.fit(x, y, batch_size=24, epochs=2, sample_weight=weights, validation_data=(x[:20], y[:20]), verbose=0)
print([round(v, 6) for v in h.history["loss"]], [round(v, 6) for v in h.history["val_loss"]])
print(
    round(float(model.predict(x[:9], verbose=0).mean()), 6),
    len(model.losses),
    round(float(model.train_on_batch(x[:24], y[:24])[0]), 6),
)
