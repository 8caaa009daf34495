"""A Trainer class with callbacks, a config dataclass, type hints, generators: a small framework of one's own."""

# test: views=batch,slice
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    lr: float = 0.2
    epochs: int = 3
    sizes: list[int] = field(default_factory=lambda: [5, 12, 2])


class Trainer:
    def __init__(self, config: Config, callbacks: list[Callable[[Trainer], None]]):
        self.config, self.callbacks = config, callbacks
        pairs = list(zip(config.sizes, config.sizes[1:]))
        self.model = nn.Sequential(*[layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())][:-1])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.lr)
        self.epoch, self.loss = 0, float("nan")

    def losses(self, loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[Tensor]:
        for x, y in loader:
            yield nn.functional.cross_entropy(self.model(x), y)

    def fit(self, loader: DataLoader[tuple[Tensor, ...]]) -> None:
        for self.epoch in range(self.config.epochs):
            for loss in self.losses(loader):
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.loss = loss.item()
            for callback in self.callbacks:
                callback(self)


torch.manual_seed(228)
x = torch.randn(37, 5)
trainer = Trainer(Config(), [lambda t: print(f"epoch {t.epoch} loss {t.loss:.8f}")])
print(asdict(trainer.config))
trainer.fit(DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True))
