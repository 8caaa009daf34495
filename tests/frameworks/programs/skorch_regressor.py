# framework: skorch
# program: `NeuralNetRegressor` with checkpoint, early stopping, gradient clipping, a custom loss; `partial_fit`, pickling
import pickle

import numpy as np
import torch
from skorch import NeuralNetRegressor
from skorch.callbacks import Checkpoint, EarlyStopping, GradientNormClipping
from skorch.dataset import ValidSplit
from torch import nn

torch.manual_seed(2)
rng = np.random.default_rng(0)
X = rng.normal(size=(150, 8)).astype("float32")
y = (X[:, :1] ** 2 + 0.3 * X[:, 1:2]).astype("float32")


class Net(NeuralNetRegressor):
    def get_loss(self, y_pred, y_true, X=None, training=False):
        loss = super().get_loss(y_pred, y_true, X=X, training=training)
        return loss + 1e-3 * sum(p.abs().sum() for p in self.module_.parameters())


net = Net(
    nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 1)),
    max_epochs=6,
    lr=0.02,
    optimizer=torch.optim.SGD,
    optimizer__momentum=0.9,
    batch_size=25,
    train_split=ValidSplit(3),
    iterator_train__shuffle=True,
    callbacks=[Checkpoint(dirname="cp"), EarlyStopping(patience=3), GradientNormClipping(1.0)],
    verbose=0,
)
net.fit(X, y)
for row in net.history:
    print(f"{row['epoch']} {row['train_loss']:.6f} {row['valid_loss']:.6f} {row['event_cp']}")
net.partial_fit(X, y, epochs=2)
net.load_params(checkpoint=Checkpoint(dirname="cp"))
copy = pickle.loads(pickle.dumps(net))
print(f"{net.predict(X).mean():.6f} {copy.predict(X).std():.6f} {net.score(X, y):.6f}")
