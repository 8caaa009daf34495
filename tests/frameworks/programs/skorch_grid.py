# framework: skorch
# program: `NeuralNetClassifier` in a scikit-learn pipeline, `cross_val_score`, grid search, callbacks
import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import EpochScoring, LRScheduler
from torch import nn

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
X, y = make_classification(160, 20, n_informative=10, random_state=0)
X, y = X.astype(np.float32), y.astype(np.int64)


class MyModule(nn.Module):
    def __init__(self, num_units=10, nonlin=nn.ReLU()):
        super().__init__()
        self.dense0 = nn.Linear(20, num_units)
        self.bn = nn.BatchNorm1d(num_units)
        self.nonlin = nonlin
        self.dropout = nn.Dropout(0.3)
        self.output = nn.Linear(num_units, 2)

    def forward(self, X):
        X = self.nonlin(self.bn(self.dense0(X)))
        return self.output(self.dropout(X))


net = NeuralNetClassifier(
    MyModule,
    criterion=nn.CrossEntropyLoss,
    max_epochs=4,
    lr=0.1,
    batch_size=32,
    iterator_train__shuffle=True,
    callbacks=[EpochScoring("roc_auc", lower_is_better=False), LRScheduler(policy="StepLR", step_size=2)],
    verbose=0,
)
net.fit(X, y)
for row in net.history:
    print(f"{row['epoch']} {row['train_loss']:.6f} {row['valid_loss']:.6f} {row['valid_acc']:.4f} {row['roc_auc']:.6f}")
proba = net.predict_proba(X[:6])
print(np.round(proba, 5).tolist())
net.save_params(f_params="params.pt")
pipe = Pipeline([("scale", StandardScaler()), ("net", net)])
print("cv", np.round(cross_val_score(pipe, X, y, cv=2, scoring="accuracy"), 5).tolist())
net.set_params(train_split=False)
gs = GridSearchCV(net, {"lr": [0.05, 0.1], "module__num_units": [8, 12]}, refit=False, cv=2, scoring="neg_log_loss")
gs.fit(X, y)
print(f"best {gs.best_score_:.6f} {gs.best_params_}")
