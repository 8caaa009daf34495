# framework: lightning
# program: `Trainer.fit`, `validate`, `test`, `predict`; batch norm, dropout, `ModelCheckpoint`, resumed
import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitClassifier(L.LightningModule):
    def __init__(self, hidden=32, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(8 * 36, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 4),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss)
        self.log("train_acc", (logits.argmax(1) == y).float().mean(), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", F.cross_entropy(self(x), y))

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(-1)

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)}

    def on_train_epoch_end(self):
        m = self.trainer.callback_metrics
        print(
            f"epoch {self.current_epoch}: loss {m['train_loss']:.6f} acc {m['train_acc']:.6f} val {m.get('val_loss', torch.tensor(0.0)):.6f}"
        )


class Data(L.LightningDataModule):
    def setup(self, stage):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(110, 1, 8, 8, generator=g)
        y = torch.randint(0, 4, (110,), generator=g)
        self.train = TensorDataset(x[:70], y[:70])
        self.val = TensorDataset(x[70:], y[70:])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=16)

    test_dataloader = predict_dataloader = val_dataloader


def trainer(epochs):
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger("logs"),
        callbacks=[ModelCheckpoint(dirpath="ckpt", monitor="val_loss", save_last=True), LearningRateMonitor()],
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )


if __name__ == "__main__":
    L.seed_everything(42)
    model, data = LitClassifier(), Data()
    first = trainer(2)
    first.fit(model, datamodule=data)
    print(f"best {first.checkpoint_callback.best_model_score:.6f}")
    again = trainer(4)
    resumed = LitClassifier()
    again.fit(resumed, datamodule=data, ckpt_path="ckpt/last.ckpt")
    val = again.validate(resumed, datamodule=data, verbose=False)
    test = again.test(resumed, datamodule=data, verbose=False)
    print({k: round(v, 6) for k, v in {**val[0], **test[0]}.items()})
    probs = torch.cat(again.predict(resumed, datamodule=data))
    print(f"probs {probs[:, 0].mean():.6f} {probs.shape}")
    loaded = LitClassifier.load_from_checkpoint(again.checkpoint_callback.best_model_path, weights_only=False)
    print(f"loaded {sum(p.abs().sum().item() for p in loaded.parameters()):.5f}")
