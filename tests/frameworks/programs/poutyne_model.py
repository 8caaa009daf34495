# framework: poutyne
# program: `Model.fit_generator` with callbacks, metrics of batch and epoch, `evaluate` and `predict`
# mask: \d+\.\d+s|\(\S*s\)
import numpy as np
import torch
from poutyne import EarlyStopping, Model, ModelCheckpoint
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(200, 8), torch.randint(0, 3, (200,))
ds = torch.utils.data.TensorDataset(x, y)
train, valid, test = torch.utils.data.random_split(ds, [120, 40, 40])
loaders = [torch.utils.data.DataLoader(d, batch_size=20, shuffle=i == 0) for i, d in enumerate((train, valid, test))]
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
model = Model(net, "adam", "cross_entropy", batch_metrics=["accuracy"], epoch_metrics=["f1"], device="cpu")
callbacks = [
    ModelCheckpoint("best.pth", monitor="val_fscore_macro", mode="max", save_best_only=True, restore_best=True),
    EarlyStopping(patience=2),
]
history = model.fit_generator(loaders[0], loaders[1], epochs=3, callbacks=callbacks, verbose=False)
for row in history:
    print({k: round(float(v), 5) for k, v in row.items() if k != "time"})
loss, (acc, f1) = model.evaluate_generator(loaders[2], verbose=False)
print(f"{loss:.5f} {acc:.5f} {f1:.5f}", np.round(model.predict(x[:2].numpy(), verbose=False), 4).tolist())
