"""Functions of torch that look at values only to check them. While operations are noted they run without the check,
which would be a read of samples; a real call that is not compared with its proof checks them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from paceline.script.patches import patch
from paceline.script.proof.recorder import Recorder


def find() -> Callable[[], None]:
    """Patches them; returns a function that removes the patches."""
    plain = F.one_hot

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if Recorder.active is None or num_classes <= 0:
            return plain(tensor, num_classes)
        zeros = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64, device=tensor.device)
        return zeros.scatter(-1, tensor.unsqueeze(-1), 1)

    return patch(F, "one_hot", one_hot)
