# framework: keras
# program: Keras layers in a hand-written torch loop, and an overridden `train_step`
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch

keras.utils.set_random_seed(2)
x = np.random.normal(size=(64, 6)).astype("float32")
y = (x[:, :1] * 2 - x[:, 1:2]).astype("float32")


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        loss.backward()
        trainable_weights = [v for v in self.trainable_weights]
        gradients = [v.value.grad for v in trainable_weights]
        with torch.no_grad():
            self.optimizer.apply(gradients, trainable_weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


inputs = keras.Input((6,))
outputs = keras.layers.Dense(1)(keras.layers.Dropout(0.1)(keras.layers.Dense(16, activation="relu")(inputs)))
model = CustomModel(inputs, outputs)
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
history = model.fit(x, y, epochs=3, batch_size=16, verbose=0)
print([round(v, 6) for v in history.history["loss"]], [round(float(v), 6) for v in history.history["mae"]])

loop = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
optimizer = torch.optim.SGD(loop.parameters(), lr=0.05)
loss_fn = torch.nn.MSELoss()
data = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=16, shuffle=True
)
for epoch in range(2):
    for inputs, targets in data:
        loss = loss_fn(loop(inputs), targets)
        loop.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} {loss.item():.6f}")
