"""Batch: training batches of another size, and the learning rate with them.

Changes: the mathematics. A step sees more samples (or fewer), so there are fewer steps, and the learning rate is
multiplied: by the factor (linear), its square root, or not at all. Where nothing is said: linear for plain gradient
descent, the square root for optimizers that divide by the size of gradients (Adam). Applies to DataLoaders that are
iterated while a model trains; those of evaluation keep their batch. `batch=512` is for the first, others grow alike; no
batch is larger than its dataset.
Can break: accuracy, and what a script computes from its own batch size.

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
    """Loaders get other batches before they are first iterated; learning rates are other ones during a step only, so
    that a scheduler of the script's never notices."""

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
                return batch  # of the sampler's size
            return batch_resize.join_more(batch, lambda: plain(iterator), self.growth, self.stage.run.batch_dim)

        return following

    # -- the learning rate -----------------------------------------------------------------------------------------

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        if not self.growth.new and not self.stage.aside:
            raise ScriptError(
                f"Asked for --mod batch={self.asked}, but the script trains without a DataLoader, or on one that it "
                "iterates with its models in eval mode.",
                advice=ADVICE,
            )

    def before_step(self, optimizer: Any) -> None:
        if not self.growth.new:
            return
        chosen = any(mod.startswith("large_batch=") for mod in self.stage.run.mods)  # there, with the rest
        rule: Any = self.rule or ("none" if chosen else usual_rule(self.stage, optimizer))
        self.rates.grown = self.growth.new / self.growth.old
        factor = 1.0 if rule == "none" else scale_rate(rule, self.rates.grown)
        self._tell(f"× {factor:.4g} ({rule} rule)" if rule != "none" else "as it is")
        if factor != 1.0:
            self.rates.scale(optimizer, factor)

    def _tell(self, rate: str) -> None:
        text = f"batch {self.growth.old} → {self.growth.new}, learning rate {rate}"
        if text != self._told:
            self._told = text
            self.stage.pulse.notice(text, mod="batch")
