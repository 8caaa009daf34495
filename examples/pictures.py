"""Pictures for the examples: drawn by this module, or read from a folder of real data sets.

Drawn pictures show ten kinds of shapes and stripes (disc, ring, square, …) at random positions and intensities, with
noise. They are the same in every run, need no download, and a small network learns them in a few epochs.
With a folder, Fashion-MNIST is read from its four idx files (`fashion-mnist/*.gz`) and CIFAR-10 from
`cifar-10/*.xz` (labels, then the planes R−G, G, B−G of differences) or from the original `data_batch_*.bin`.
"""

import gzip
import lzma
from pathlib import Path

import numpy as np
import torch

KINDS = ("disc", "ring", "square", "frame", "plus", "cross", "rows", "columns", "slants", "checks")
FASHION_MEAN, FASHION_STD = 0.2860, 0.3530
CIFAR_MEAN, CIFAR_STD = 0.473, 0.252


def load(shape="fashion", folder=None, train_size=None, test_size=None, draw_train=8000, draw_test=2000, noise=1.0):
    """(train images, train labels, test images, test labels) as tensors; shape is "fashion" or "cifar".

    Images are float32, (n, 1, 28, 28) or (n, 3, 32, 32), with a mean of about 0 and a standard deviation of about 1.
    Without sizes, the whole real set is read, or `draw_train` and `draw_test` pictures are drawn. `noise` is the
    standard deviation of the noise in drawn pictures.
    """
    if folder is None:
        size, channels = (28, 1) if shape == "fashion" else (32, 3)
        train = draw(train_size or draw_train, size, channels, noise, seed=1)
        test = draw(test_size or draw_test, size, channels, noise, seed=2)
    else:
        read = read_fashion if shape == "fashion" else read_cifar
        train, test = read(Path(folder), True, train_size), read(Path(folder), False, test_size)
    return tuple(torch.from_numpy(array) for array in (*train, *test))


def draw(count, size, channels, noise, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(KINDS), size=count)
    row, column = (grid.astype(np.float32) for grid in np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j])
    left, top, radius = rng.uniform((-0.2, -0.2, 0.4), (0.2, 0.2, 0.7), (count, 3)).astype(np.float32).T
    ink = rng.uniform(0.5, 1.5, (count, channels, 1, 1)).astype(np.float32)
    images = rng.standard_normal((count, channels, size, size), dtype=np.float32) * np.float32(noise)
    for kind in range(len(KINDS)):
        these = np.flatnonzero(labels == kind)
        u = column - left[these, None, None]
        v = row - top[these, None, None]
        mask = shape_of(KINDS[kind], u, v, radius[these, None, None])
        images[these] += ink[these] * 2 * (mask[:, None] - np.float32(0.3))
    return images * np.float32(0.7), labels


def shape_of(kind, u, v, radius):
    """Mask of the shape, for coordinates u (to the right) and v (down) from the centre of the shape."""
    wide = np.maximum(abs(u), abs(v))
    match kind:
        case "disc":
            return u * u + v * v < radius * radius
        case "ring":
            return abs(np.hypot(u, v) - radius) < 0.12
        case "square":
            return wide < radius
        case "frame":
            return abs(wide - radius) < 0.12
        case "plus":
            return (np.minimum(abs(u), abs(v)) < 0.12) & (wide < radius)
        case "cross":
            return (np.minimum(abs(u - v), abs(u + v)) < 0.17) & (wide < radius)
        case "rows":
            return np.sin(6 / radius * v) > 0
        case "columns":
            return np.sin(6 / radius * u) > 0
        case "slants":
            return np.sin(4 / radius * (u + v)) > 0
        case "checks":
            return np.sin(6 / radius * u) * np.sin(6 / radius * v) > 0


def read_fashion(folder, train, limit):
    name = str(folder / "fashion-mnist" / ("train" if train else "t10k"))
    images = np.frombuffer(gzip.open(f"{name}-images-idx3-ubyte.gz").read(), np.uint8, offset=16)
    labels = np.frombuffer(gzip.open(f"{name}-labels-idx1-ubyte.gz").read(), np.uint8, offset=8)
    images = images.reshape(-1, 1, 28, 28)[:limit].astype(np.float32)
    return (images / 255 - FASHION_MEAN) / FASHION_STD, labels[:limit].astype(np.int64)


def read_cifar(folder, train, limit):
    """Reads the files in the order of their names, until there are `limit` images."""
    packed = sorted((folder / "cifar-10").glob("train-*.xz" if train else "test-*.xz"))
    binary = sorted((folder / "cifar-10").glob("data_batch_*.bin" if train else "test_batch.bin"))
    images, labels, found = [], [], 0
    for file in packed or binary:
        if limit is None or found < limit:
            x, y = (unpack_differences if packed else unpack_binary)(file)
            images, labels, found = [*images, x], [*labels, y], found + len(y)
    if not images:
        raise SystemExit(f"{folder / 'cifar-10'} has no CIFAR-10 files: neither train-*.xz nor data_batch_*.bin")
    images = np.concatenate(images)[:limit].astype(np.float32)
    return (images / 255 - CIFAR_MEAN) / CIFAR_STD, np.concatenate(labels)[:limit].astype(np.int64)


def unpack_differences(file):
    data = np.frombuffer(lzma.open(file).read(), np.uint8)
    count = data.size // 3073
    planes = data[count:].reshape(3, count, 1024).cumsum(2, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return planes.transpose(1, 0, 2).reshape(count, 3, 32, 32), data[:count]


def unpack_binary(file):
    data = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 3073)
    return data[:, 1:].reshape(-1, 3, 32, 32), data[:, 0]
