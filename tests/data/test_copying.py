"""Batches on their way to a device."""

from __future__ import annotations

import pytest
import torch

from paceline.data.device import copy


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 3, 5)])
def test_a_copy_is_the_same_of_every_kind_and_layout(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = (torch.rand(shape) * 9).to(dtype)
    for given in (source, source.mT if source.dim() > 1 else source, source.requires_grad_(dtype.is_floating_point)):
        target = torch.empty(given.shape, dtype=dtype)
        copy(given.detach() if not given.is_contiguous() else given, target)
        assert torch.equal(target, given)
