"""Batch: another size of the training batches, with the learning rate scaled accordingly.

Changes: the mathematics. A step sees more samples (or fewer), so there are fewer (or more) steps, and the learning rate
is multiplied by the factor (linear), by its square root (sqrt), or not at all (none). The default is linear for SGD,
and the square root for optimizers that normalise by gradient magnitude (Adam). Applies to DataLoaders that are iterated
while a model trains; evaluation loaders keep their batch. `batch=512` sets the first training loader's batch, and the
batches of other training loaders are scaled by the same factor; no batch is larger than its dataset.
Can break: accuracy, and values that a script computes from its own batch size.

By hand:

    loader = DataLoader(dataset, K * batch_size, shuffle=True)  # batch=xK
    optimizer = torch.optim.SGD(model.parameters(), lr=K * lr)  # √K where Adam takes the steps, or with :sqrt
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.converge.schedules import scale_rate
from paceline.errors import ScriptError
from paceline.mods.support import batch_resize
from paceline.mods.support.learning_rates import Rates, usual_rule
from paceline.script.seams.stage import Stage

ADVICE = "Change the batch in the script, or leave the mod out."


class Mod:
    """Changes a loader's batches before its first iteration, and learning rates during a step only, so that the
    script's scheduler is not affected."""

    def __init__(self, value: str) -> None:
        self.asked, _, self.rule = value.partition(":")
        self._told = ""

    def on_stage(self, stage: Stage) -> None:
        self.stage, self.growth = stage, batch_resize.Growth(stage, self.asked)
        self.rates = Rates.of(stage)
        stage.subscribe(self)

    # -- batches ---------------------------------------------------------------------------------------------------

    def on_loader(self, loader: Any) -> None:
        batch_resize.regroup(loader, self.growth)

    def around_length(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def length(loader: Any) -> int:
            batch_resize.regroup(loader, self.growth)
            return batch_resize.length(loader, plain, self.growth)

        return length

    def around_batch(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            batch = plain(iterator)
            if iterator._auto_collation or not self.growth.is_due(self.growth.known(iterator)):
                return batch  # the batch sampler has already set its size
            return batch_resize.join_more(batch, lambda: plain(iterator), self.growth, self.stage.run.batch_dim)

        return following

    # -- the learning rate -----------------------------------------------------------------------------------------

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        if not self.growth.new and not self.stage.aside:
            raise ScriptError(
                f"--mod batch={self.asked}: the script trains without a DataLoader, or iterates its DataLoader while "
                "its models are in eval mode.",
                advice=ADVICE,
            )

    def before_step(self, optimizer: Any) -> None:
        if not self.growth.new:
            return
        # large_batch chooses the rate's rule together with the optimizer.
        chosen = any(mod.startswith("large_batch=") for mod in self.stage.run.mods)
        rule: Any = self.rule or ("none" if chosen else usual_rule(self.stage, optimizer))
        self.rates.grown = self.growth.new / self.growth.old
        factor = 1.0 if rule == "none" else scale_rate(rule, self.rates.grown)
        self._tell(f"× {factor:.4g} ({rule} rule)" if rule != "none" else "unchanged")
        if factor != 1.0:
            self.rates.scale(optimizer, factor)

    def _tell(self, rate: str) -> None:
        text = f"batch {self.growth.old} → {self.growth.new}, learning rate {rate}"
        if text != self._told:
            self._told = text
            self.stage.pulse.notice(text, mod="batch")
