"""Augmentation of images, a whole batch at a time, on the batch's device.

    pipeline.batch(256).augment(data.Crop(32, padding=4), data.Flip(), data.Normalize(MEAN, STD), seed=0)

Images are (n, channels, height, width), bytes from 0 to 255 or floats from 0 to 1. Random numbers are drawn for each
image, on the host, from the batch's own generator: so they are the same on every device, and after resuming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from paceline.errors import UsageError
from paceline.script import tree

GRAY = (0.299, 0.587, 0.114)  # weights of red, green and blue in the brightness


class Operation(Protocol):
    """Changes images, and labels if needed."""

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor | None, generator: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]: ...


class Augment:
    """Applies operations in order to the images and labels of a batch: its first tensor with four dimensions, and its
    first tensor with one."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = tuple(operations)
        self.__name__ = "augment"

    @property
    def draws(self) -> bool:
        """Whether random numbers are needed: preparing them takes longer than normalising images."""
        return not all(isinstance(operation, Normalize) for operation in self.operations)

    def __call__(self, batch: Any, generator: np.random.Generator | None = None) -> Any:
        leaves = tree.leaves(batch)
        image = next((n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() == 4), None)
        label = next((n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() == 1), None)
        if image is None:
            raise UsageError(
                "augment() found no images in a batch: no tensor has four dimensions.",
                advice="Write .augment() after .batch(), and give images as (channels, height, width).",
            )
        images, labels = leaves[image], None if label is None else leaves[label]
        for operation in self.operations:
            images, labels = operation(images, labels, generator)  # type: ignore[arg-type]
        leaves[image] = images
        if label is not None:
            leaves[label] = labels
        return tree.rebuild(batch, iter(leaves))


def _drawn(values: np.ndarray[Any, Any], images: torch.Tensor) -> torch.Tensor:
    """Random numbers on the images' device, one for each image, shaped so that images can be multiplied by them."""
    dtype = images.dtype if images.is_floating_point() else torch.float32
    return torch.from_numpy(values).to(images.device, dtype).view(-1, 1, 1, 1)


def _top(images: torch.Tensor) -> float:
    return 1.0 if images.is_floating_point() else 255.0


def _like(made: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """The result in the range and type of the original images."""
    made = made.clamp_(0, _top(images))
    return made if images.is_floating_point() else made.round_().to(images.dtype)


class Crop:
    """A square of `size` pixels (or height and width) at a random position, after `padding` with black on all sides."""

    def __init__(self, size: int | tuple[int, int], padding: int = 0) -> None:
        self.height, self.width = (size, size) if isinstance(size, int) else size
        self.padding = padding

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor | None, generator: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.padding:
            images = F.pad(images, (self.padding,) * 4)
        count, _, high, wide = images.shape
        if self.height > high or self.width > wide:
            raise UsageError(
                f"Crop of {self.height} × {self.width} pixels is larger than the images of {high} × {wide} pixels.",
                advice="Crop less, or pad more: data.Crop(size, padding=N).",
            )
        tops = generator.integers(0, high - self.height + 1, count)
        lefts = generator.integers(0, wide - self.width + 1, count)
        if images.device.type == "cpu":
            return self._cut(images, tops, lefts), labels
        rows = torch.from_numpy(tops).to(images.device)[:, None] + torch.arange(self.height, device=images.device)
        columns = torch.from_numpy(lefts).to(images.device)[:, None] + torch.arange(self.width, device=images.device)
        numbers = torch.arange(count, device=images.device)
        picked = images[numbers[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return picked.permute(0, 3, 1, 2).contiguous(), labels

    def _cut(self, images: torch.Tensor, tops: Any, lefts: Any) -> torch.Tensor:
        """Copies each rectangle, which is faster on the host than gathering single pixels."""
        made = torch.empty((*images.shape[:2], self.height, self.width), dtype=images.dtype)
        for number, (top, left) in enumerate(zip(tops.tolist(), lefts.tolist(), strict=True)):
            made[number] = images[number, :, top : top + self.height, left : left + self.width]
        return made


class Flip:
    """Flips this share of the images horizontally."""

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor | None, generator: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        chosen = torch.from_numpy(generator.random(len(images)) < self.share).to(images.device)
        return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images), labels


class ColorJitter:
    """Multiplies brightness, contrast and saturation by a factor between 1 - x and 1 + x each, then rotates the hue by
    up to x of a full turn."""

    def __init__(
        self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0
    ) -> None:
        self.brightness, self.contrast, self.saturation, self.hue = brightness, contrast, saturation, hue

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor | None, generator: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        top, made = _top(images), images if images.is_floating_point() else images.float()
        if images.shape[1] != 3 and (self.saturation or self.hue):
            raise UsageError(
                f"ColorJitter with saturation or hue got images with {images.shape[1]} channels, not 3.",
                advice="Leave saturation and hue at 0, or give images with red, green and blue.",
            )
        if self.brightness:
            made = (made * self._factor(self.brightness, images, generator)).clamp(0, top)
        if self.contrast:
            factor = self._factor(self.contrast, images, generator)
            mean = _gray(made).mean((1, 2, 3), keepdim=True)
            made = (made * factor + mean * (1 - factor)).clamp(0, top)
        if self.saturation:
            factor = self._factor(self.saturation, images, generator)
            made = (made * factor + _gray(made) * (1 - factor)).clamp(0, top)
        if self.hue:
            made = self._turned(made, generator.uniform(-self.hue, self.hue, len(images))).clamp(0, top)
        return (_like(made, images) if made is not images else images), labels

    def _factor(self, spread: float, images: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        return _drawn(generator.uniform(max(0.0, 1 - spread), 1 + spread, len(images)), images)

    def _turned(self, images: torch.Tensor, turns: np.ndarray[Any, Any]) -> torch.Tensor:
        """Rotates the colours about the gray axis (in the IQ plane of YIQ), so that the brightness is kept."""
        there = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
        angle = 2 * np.pi * turns
        turn = np.zeros((len(turns), 3, 3))
        turn[:, 0, 0] = 1
        turn[:, 1, 1] = turn[:, 2, 2] = np.cos(angle)
        turn[:, 1, 2], turn[:, 2, 1] = -np.sin(angle), np.sin(angle)
        matrix = torch.from_numpy(np.linalg.inv(there) @ turn @ there).to(images.device, images.dtype)
        return torch.einsum("nij,njhw->nihw", matrix, images)


def _gray(images: torch.Tensor) -> torch.Tensor:
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    weights = torch.tensor(GRAY, dtype=images.dtype, device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


class Normalize:
    """Floats, minus the channel's mean and divided by its standard deviation, both for values from 0 to 1."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        self.mean, self.std, self.dtype = tuple(mean), tuple(std), dtype
        # By device and range. Copied once, because a copy from pageable memory makes each batch wait for the device.
        self._numbers: dict[tuple[torch.device, float], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor | None, generator: np.random.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        key = images.device, _top(images)
        if key not in self._numbers:
            shape = (1, -1, 1, 1)
            mean = torch.tensor(self.mean, dtype=torch.float64).view(shape)
            std = torch.tensor(self.std, dtype=torch.float64).view(shape)
            factor, less = 1 / (std * key[1]), mean / std
            self._numbers[key] = factor.to(images.device, self.dtype), less.to(images.device, self.dtype)
        factor, less = self._numbers[key]
        # The multiplication also converts integers to floats, which saves a kernel.
        whole = not images.is_floating_point()
        made = torch.mul(images if whole else images.to(self.dtype), factor)
        return made.sub_(less), labels


class Cutout:
    """A black square of `size` pixels at a random position of each image; the square may reach over the edge."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor | None, generator: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        count, _, high, wide = images.shape
        inside = []
        for length, shape in ((high, (-1, 1, high, 1)), (wide, (-1, 1, 1, wide))):
            begin = torch.from_numpy(generator.integers(0, length, count) - self.size // 2).to(images.device)
            places = torch.arange(length, device=images.device)
            within = (places >= begin[:, None]) & (places < begin[:, None] + self.size)
            inside.append(within.view(shape))
        return images.masked_fill(inside[0] & inside[1], 0), labels


class Mixup:
    """Mixes each image and its label with another image of the batch; labels become weights of `classes` classes."""

    def __init__(self, alpha: float, classes: int) -> None:
        self.alpha, self.classes = alpha, classes

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor | None, generator: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if labels is None:
            raise UsageError(
                "Mixup got a batch without labels.", advice="Give batches with a tensor of labels (one dimension)."
            )
        share = _drawn(generator.beta(self.alpha, self.alpha, len(images)), images)
        other = torch.from_numpy(generator.permutation(len(images))).to(images.device)
        whole = images if images.is_floating_point() else images.float()
        made = whole * share + whole.index_select(0, other) * (1 - share)
        hot = F.one_hot(labels.long(), self.classes).to(share.dtype)
        share = share.view(-1, 1).to(hot.device)
        mixed = hot * share + hot.index_select(0, other.to(hot.device)) * (1 - share)
        return (_like(made, images) if not images.is_floating_point() else made), mixed
