"""What the mod `compile` tells torch.compile of a GPU's kernels."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses import FakeTensorMode

from paceline.torch_private import compile_weight_gradients_as_cudnn

ONE_PIXEL = ((512, 1, 1, 1), (512, 1, 512, 512))  # both are strides of maps of one pixel in channels_last


@pytest.mark.gpu
@pytest.mark.parametrize(("given", "grad"), itertools.product(ONE_PIXEL, ONE_PIXEL))
def test_a_weights_gradient_is_laid_out_as_cudnn_does(given: tuple[int, ...], grad: tuple[int, ...]) -> None:
    compile_weight_gradients_as_cudnn()
    weight = torch.randn(512, 512, 3, 3, device="cuda").contiguous(memory_format=torch.channels_last)
    tensors = [
        *(torch.randn(128 * 512, device="cuda").as_strided((128, 512, 1, 1), s) for s in (grad, given)),
        weight,
    ]

    def strides(*tensors: torch.Tensor) -> tuple[int, ...]:
        rest = [0], (1, 1), (1, 1), (1, 1), False, (0, 0), 1, [True, True, False]
        return torch.ops.aten.convolution_backward(*tensors, *rest)[1].stride()

    with FakeTensorMode() as mode:
        fake = strides(*(mode.from_tensor(tensor) for tensor in tensors))
    assert fake == strides(*tensors)
