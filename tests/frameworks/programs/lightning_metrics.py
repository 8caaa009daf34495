# framework: lightning
# package: torchmetrics
# program: torchmetrics as modules of a LightningModule, early stopping, automatic batch transfer, SWA callback
import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
        self.loss = nn.CrossEntropyLoss()
        self.train_acc = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.val_acc = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.val_f1 = torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro")

    def step(self, batch):
        x, y = batch
        logits = self.layers(x)
        return self.loss(logits, y), logits, y

    def training_step(self, batch, batch_idx):
        loss, logits, y = self.step(batch)
        self.train_acc(logits, y)
        self.log("train/acc", self.train_acc, on_step=True, on_epoch=True)
        return {"loss": loss, "logits": logits.detach()}

    def validation_step(self, batch, batch_idx):
        loss, logits, y = self.step(batch)
        self.val_acc.update(logits, y)
        self.val_f1.update(logits, y)
        self.log("val/loss", loss, on_epoch=True)

    def on_validation_epoch_end(self):
        print(f"val acc {self.val_acc.compute():.6f} f1 {self.val_f1.compute():.6f}")
        self.val_acc.reset()
        self.val_f1.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


L.seed_everything(7, workers=True)
x = torch.randn(150, 8)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
model = Model()
trainer = L.Trainer(
    max_epochs=5,
    accelerator="cpu",
    deterministic=True,
    accumulate_grad_batches=2,
    callbacks=[EarlyStopping("val/loss", patience=2), StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=3)],
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(
    model,
    DataLoader(TensorDataset(x[:100], y[:100]), 20, shuffle=True),
    DataLoader(TensorDataset(x[100:], y[100:]), 20),
)
for k, v in sorted(trainer.callback_metrics.items()):
    print(k, f"{v.item():.6f}")
