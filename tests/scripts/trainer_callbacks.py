"""A Trainer with callbacks and a dataclass config; training_step returns a dict; metrics by numpy."""

import dataclasses
import math
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclasses.dataclass
class Config:
    lr: float = 0.2
    epochs: int = 3
    batch: int = 12
    clip: float = 0.5
    momentum: float = 0.9
    hidden: tuple = (16, 8)


class Blobs(Dataset):
    def __init__(self, n, seed):
        rng = np.random.RandomState(seed)
        self.y = rng.randint(0, 4, n)
        self.x = rng.randn(n, 6).astype("float32") + self.y[:, None].astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"inputs": self.x[i], "label": self.y[i], "id": f"s{i}"}


class Callback:
    def on_epoch_end(self, t, logs):
        pass

    def on_batch_end(self, t, logs):
        pass


class Print(Callback):
    def on_epoch_end(self, t, logs):
        print(" | ".join(f"{k} {v:.5f}" for k, v in sorted(logs.items())))


class EarlyStop(Callback):
    best = math.inf

    def on_epoch_end(self, t, logs):
        if logs["val_loss"] > self.best:
            t.stop = True
        self.best = min(self.best, logs["val_loss"])


class Warmup(Callback):
    def on_batch_end(self, t, logs):
        for g in t.opt.param_groups:
            g["lr"] = t.cfg.lr * min(1, (t.step + 1) / 6)


class Module(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        sizes = [6, *cfg.hidden]
        self.net = nn.Sequential(
            *[layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU())]
        )
        self.head = nn.Linear(sizes[-1], 4)

    def forward(self, batch):
        return {"logits": self.head(self.net(batch["inputs"])), "ids": batch["id"]}

    def training_step(self, batch):
        out = self(batch)
        loss = nn.functional.cross_entropy(out["logits"], batch["label"], label_smoothing=0.1)
        return {"loss": loss, "pred": out["logits"].argmax(1).detach().numpy(), "ids": out["ids"]}


class Trainer:
    def __init__(self, model, cfg, callbacks):
        self.m, self.cfg, self.cbs, self.step, self.stop = model, cfg, callbacks, 0, False
        self.opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)

    def fit(self, train, val):
        for _ in range(self.cfg.epochs):
            self.m.train()
            cm = np.zeros((4, 4), int)
            run = None
            for batch in train:
                r = self.m.training_step(batch)
                self.opt.zero_grad(set_to_none=False)
                r["loss"].backward()
                nn.utils.clip_grad_norm_(self.m.head.parameters(), self.cfg.clip)
                self.opt.step()
                run = r["loss"].item() if run is None else 0.9 * run + 0.1 * r["loss"].item()
                for p, t in zip(r["pred"], batch["label"].numpy()):
                    cm[t, p] += 1
                for c in self.cbs:
                    c.on_batch_end(self, r)
                self.step += 1
            self.m.eval()
            tot = n = 0
            with torch.no_grad():
                for batch in val:
                    logits = self.m(batch)["logits"]
                    tot += nn.functional.cross_entropy(logits, batch["label"], reduction="sum").item()
                    n += len(logits)
            logs = {
                "loss": run,
                "val_loss": tot / n,
                "acc": cm.trace() / cm.sum(),
                "recall0": cm[0, 0] / max(1, cm[0].sum()),
            }
            for c in self.cbs:
                c.on_epoch_end(self, logs)
            print(r["ids"][:2], cm.tolist())
            if self.stop:
                break


random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
cfg = Config()
Trainer(Module(cfg), cfg, [Print(), EarlyStop(), Warmup()]).fit(
    DataLoader(Blobs(50, 0), cfg.batch, shuffle=True), DataLoader(Blobs(21, 1), 8)
)
