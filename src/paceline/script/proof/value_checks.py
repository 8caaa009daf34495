"""Functions of torch that look at values only to check them. While operations are noted, F.one_hot runs without the
check, which would be a read of samples (a real call that is not compared with its proof checks them); what a
distribution checks is not noted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributions import Distribution

from paceline.script.patches import all_of, patch
from paceline.script.proof.recorder import Recorder
from paceline.torch_private import no_dispatch_modes


def find() -> Callable[[], None]:
    """Patches them; returns a function that removes the patches."""
    plain = F.one_hot

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if Recorder.active is None or num_classes <= 0:
            return plain(tensor, num_classes)
        zeros = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64, device=tensor.device)
        return zeros.scatter(-1, tensor.unsqueeze(-1), 1)

    def unseen(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def checked(*args: Any, **kwargs: Any) -> None:
            with nullcontext() if Recorder.active is None else no_dispatch_modes():
                check(*args, **kwargs)

        return checked

    checks = [(Distribution, name, unseen(vars(Distribution)[name])) for name in ("__init__", "_validate_sample")]
    return all_of([patch(F, "one_hot", one_hot), *(patch(*check) for check in checks)])
