"""Augmentation of batches, against pictures worked on one by one in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import paceline.data as pd
from paceline.errors import UsageError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
each_device = pytest.mark.parametrize("device", DEVICES)
KINDS = ["bytes", "floats"]


def pictures(kind: str, device: str = "cpu", channels: int = 3) -> torch.Tensor:
    raw = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, channels, 6, 8), np.uint8))
    return (raw if kind == "bytes" else raw.float() / 255).to(device)


def draws(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@each_device
@pytest.mark.parametrize("kind", KINDS)
def test_crops(device: str, kind: str) -> None:
    images = pictures(kind, device)
    made, _ = pd.Crop((4, 5), padding=2)(images, None, draws())
    random = draws()
    tops, lefts = random.integers(0, 7, 9), random.integers(0, 8, 9)
    padded = np.pad(images.cpu().numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    for number in range(9):
        top, left = tops[number], lefts[number]
        assert np.array_equal(made[number].cpu().numpy(), padded[number, :, top : top + 4, left : left + 5])
    assert made.dtype == images.dtype
    assert made.is_contiguous()
    with pytest.raises(UsageError, match="7 × 7 pixels is larger than the images of 6 × 8"):
        pd.Crop(7)(images, None, draws())


@each_device
def test_flips(device: str) -> None:
    images = pictures("bytes", device)
    made, _ = pd.Flip(0.6)(images, None, draws())
    for number, chosen in enumerate(draws().random(9) < 0.6):
        expected = images[number].flip(-1) if chosen else images[number]
        assert torch.equal(made[number], expected)


def reference_jitter(image: Any, factors: dict[str, float], top: float) -> Any:
    def gray(x: Any) -> Any:
        return 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]

    x = np.clip(image * factors["brightness"], 0, top)
    x = np.clip(x * factors["contrast"] + gray(x).mean() * (1 - factors["contrast"]), 0, top)
    return np.clip(x * factors["saturation"] + gray(x) * (1 - factors["saturation"]), 0, top)


@each_device
@pytest.mark.parametrize("kind", KINDS)
def test_colours(device: str, kind: str) -> None:
    images = pictures(kind, device)
    made, _ = pd.ColorJitter(0.4, 0.3, 0.5)(images, None, draws())
    random = draws()
    each = {
        name: random.uniform(1 - x, 1 + x, 9)
        for name, x in (("brightness", 0.4), ("contrast", 0.3), ("saturation", 0.5))
    }
    top = 255.0 if kind == "bytes" else 1.0
    for number in range(9):
        factors = {name: values[number] for name, values in each.items()}
        expected = reference_jitter(images[number].cpu().double().numpy(), factors, top)
        assert np.abs(made[number].cpu().double().numpy() - expected).max() <= (0.51 if kind == "bytes" else 1e-5)
    assert made.dtype == images.dtype


def test_a_turned_hue_keeps_brightness_and_a_whole_turn_changes_nothing() -> None:
    images = pictures("floats") * 0.3 + 0.35  # far from the edges of the range
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    made, _ = pd.ColorJitter(hue=0.1)(images, None, draws())
    assert not torch.allclose(made, images, atol=0.01)
    assert torch.allclose((made * weights).sum(1), (images * weights).sum(1), atol=2e-3)
    whole = pd.ColorJitter()._turned(images, np.ones(9))
    assert torch.allclose(whole, images, atol=1e-5)
    gray = torch.full((9, 3, 2, 2), 0.4)
    assert torch.allclose(pd.ColorJitter(hue=0.5)(gray, None, draws())[0], gray, atol=2e-3)
    with pytest.raises(UsageError, match="1 channels"):
        pd.ColorJitter(saturation=1.0)(pictures("floats", channels=1), None, draws())
    assert pd.ColorJitter(0.2, 0.2)(pictures("bytes", channels=1), None, draws())[0].shape == (9, 1, 6, 8)


@each_device
@pytest.mark.parametrize("kind", KINDS)
def test_normalized(device: str, kind: str) -> None:
    images = pictures(kind, device)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    before = images.clone()
    made, _ = pd.Normalize(mean, std)(images, None, draws())
    unit = images.cpu().double().numpy() / (255.0 if kind == "bytes" else 1.0)
    expected = (unit - np.reshape(mean, (1, 3, 1, 1))) / np.reshape(std, (1, 3, 1, 1))
    assert np.abs(made.cpu().double().numpy() - expected).max() < 1e-5
    assert torch.equal(images, before)


@each_device
def test_cutout(device: str) -> None:
    images = pictures("bytes", device).clamp(min=1)
    made, _ = pd.Cutout(3)(images, None, draws())
    random = draws()
    rows, columns = random.integers(0, 6, 9) - 1, random.integers(0, 8, 9) - 1
    for number in range(9):
        expected = images[number].cpu().clone()
        top, left = rows[number], columns[number]
        expected[:, max(0, top) : max(0, top + 3), max(0, left) : max(0, left + 3)] = 0
        assert torch.equal(made[number].cpu(), expected)


@each_device
@pytest.mark.parametrize("kind", KINDS)
def test_mixup(device: str, kind: str) -> None:
    images, labels = pictures(kind, device), torch.arange(9) % 4
    made, mixed = pd.Mixup(0.4, 4)(images, labels, draws())
    random = draws()
    share, other = random.beta(0.4, 0.4, 9), random.permutation(9)
    assert mixed is not None
    assert torch.allclose(mixed.sum(1), torch.ones(9))
    raw = images.cpu().double().numpy()
    for number in range(9):
        expected = raw[number] * share[number] + raw[other[number]] * (1 - share[number])
        assert np.abs(made[number].cpu().double().numpy() - expected).max() <= (0.51 if kind == "bytes" else 1e-5)
        hot = np.eye(4)[labels[number]] * share[number] + np.eye(4)[labels[other[number]]] * (1 - share[number])
        assert np.abs(mixed[number].double().numpy() - hot).max() < 1e-6
    with pytest.raises(UsageError, match="without labels"):
        pd.Mixup(0.4, 4)(images, None, draws())


@pytest.mark.parametrize("device", ["cpu", None])
def test_in_a_pipeline_it_is_the_seeds_and_goes_on_when_a_run_does(device: str | None) -> None:
    images, labels = pictures("bytes").repeat(6, 1, 1, 1), torch.arange(54)

    def made(seed: int = 0) -> pd.Pipeline:
        pipeline = pd.arrays(images, labels).shuffle(seed=1).batch(8)
        pipeline = pipeline.to(device) if device else pipeline
        return pipeline.augment(pd.Crop(4), pd.Flip(), pd.Cutout(2), seed=seed)

    def listed(pipeline: Any) -> list[Any]:
        return [(x.tolist(), y.tolist()) for x, y in pipeline]

    pipeline = made()
    epochs = [listed(pipeline), listed(pipeline)]
    assert epochs[0] == listed(made())
    assert epochs[0] != epochs[1]
    assert epochs[0] != listed(made(seed=5))
    first = made()
    stream = iter(first)
    next(stream), next(stream), next(stream)
    second = made()
    second.restore(first.state())
    assert listed(second) == epochs[0][3:]


def test_a_batch_without_pictures_is_refused() -> None:
    with pytest.raises(UsageError, match="no tensor has four dimensions"):
        next(iter(pd.arrays(torch.arange(4)).batch(2).augment(pd.Flip())))
