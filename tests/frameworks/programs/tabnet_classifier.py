# framework: pytorch-tabnet
# program: `TabNetPretrainer`, then `TabNetClassifier` with its evaluation, early stopping and importances
import numpy as np
import torch
from pytorch_tabnet.pretraining import TabNetPretrainer
from pytorch_tabnet.tab_model import TabNetClassifier

np.random.seed(0)
torch.manual_seed(0)
x = np.random.randn(400, 8).astype(np.float32)
x[:, 7] = np.random.randint(0, 4, 400)
y = (x[:, 0] * x[:, 1] + (x[:, 7] > 1) > 0.3).astype(int)
common = {
    "n_d": 4,
    "n_a": 4,
    "n_steps": 2,
    "cat_idxs": [7],
    "cat_dims": [4],
    "cat_emb_dim": 2,
    "seed": 0,
    "device_name": "cpu",
}
pre = TabNetPretrainer(**common, verbose=0)
pre.fit(X_train=x[:300], eval_set=[x[300:]], max_epochs=1, batch_size=64, virtual_batch_size=32, num_workers=0)
print("pretraining", [round(float(v), 4) for v in pre.history["loss"]])
net = TabNetClassifier(**common, verbose=0, optimizer_fn=torch.optim.SGD, optimizer_params={"lr": 2e-2})
net.fit(
    x[:300],
    y[:300],
    eval_set=[(x[300:], y[300:])],
    eval_metric=["auc", "accuracy"],
    max_epochs=3,
    patience=2,
    batch_size=64,
    virtual_batch_size=32,
    num_workers=0,
    from_unsupervised=pre,
)
for key in ("loss", "val_0_auc", "val_0_accuracy"):
    print(key, [round(float(v), 4) for v in net.history[key]])
print("importances", [round(float(v), 3) for v in net.feature_importances_])
