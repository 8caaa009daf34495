# framework: lightning
# program: several loaders, mid-epoch checkpoint resumed, clipping by value, anomaly detection
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class AutoEncoder(L.LightningModule):
    def __init__(self, size=6):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(12, size, bias=False), nn.BatchNorm1d(size), nn.ReLU())
        self.decoder = nn.Linear(size, 12)
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = 0
        for name in ("a", "b"):
            (x,) = batch[name]
            loss = loss + nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log_dict({"loss": loss, "index": float(batch_idx)}, on_epoch=True, batch_size=len(x))
        self.seen.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} mean {torch.stack(self.seen).mean():.6f} of {len(self.seen)}")
        self.seen.clear()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        (x,) = batch
        self.log("val", nn.functional.l1_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(
            [{"params": self.encoder.parameters(), "lr": 1e-2}, {"params": self.decoder.parameters()}], lr=3e-3
        )
        return [optimizer], [
            {
                "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 3e-3], total_steps=40),
                "interval": "step",
            }
        ]


L.seed_everything(3)
data = TensorDataset(torch.randn(90, 12))
train, val = random_split(data, [72, 18], generator=torch.Generator().manual_seed(1))
loaders = CombinedLoader({"a": DataLoader(train, 12, shuffle=True), "b": DataLoader(train, 18)}, mode="max_size_cycle")


def trainer(**more):
    saver = ModelCheckpoint("ckpt", filename="{step}", every_n_train_steps=4, save_top_k=-1)
    return L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=3,
        num_sanity_val_steps=0,
        gradient_clip_val=0.5,
        gradient_clip_algorithm="value",
        callbacks=[saver, Timer()],
        **more,
    )


model = AutoEncoder()
one = trainer(max_epochs=2, detect_anomaly=True)
one.fit(model, loaders, [DataLoader(val, 6), DataLoader(val, 9)])
print({k: round(v.item(), 6) for k, v in sorted(one.callback_metrics.items())})
again = AutoEncoder()
two = trainer(max_steps=14)
two.fit(again, loaders, [DataLoader(val, 6), DataLoader(val, 9)], ckpt_path="ckpt/step=8.ckpt", weights_only=False)
print({k: round(v.item(), 6) for k, v in sorted(two.callback_metrics.items())}, two.global_step)
print(
    [
        round(r["val/dataloader_idx_0"], 6)
        for r in two.validate(again, [DataLoader(val, 6), DataLoader(val, 9)], verbose=False)[:1]
    ]
)
