"""Predictions against published measurements.

Of each system one compute figure is given: its speed on one GPU. Of the DGX-1's network the bytes of gradients are not
published; they are taken from one of its figures, the pair without NVLink, and all other figures are predicted.
"""

from __future__ import annotations

import msgspec
import pytest
from works import MB, at_end, even, work

from paceline.plan.cluster import PRESETS, Cluster
from paceline.plan.fabric import Fabric
from paceline.plan.step import Model, Setup

# Fashion-MNIST CNN on a DGX-1, batch 2048 for each GPU: images/s on one GPU, and on GPUs 1 and 7.
ALONE, WITHOUT_NVLINK = 67_758, 96_000
STEP = 2048 / ALONE
# MirroredStrategy of that time packs all gradients into one message at the end of the backward, and copies to one GPU
# of each socket: on two GPUs the message goes there and back, at 9.41 GB/s through the host.
GRADIENTS = (2 * 2048 / WITHOUT_NVLINK - STEP) / 2 * 9.41e9


@pytest.mark.parametrize(
    ("devices", "measured"),
    [((0, 3), 142_704), ((1, 7), 96_000), ((0, 1, 2, 3), 235_271), (tuple(range(8)), 381_000)],
)
def test_images_of_a_dgx1(devices, measured):
    model = Model(work(STEP, 2048, at_end(GRADIENTS)), Fabric(PRESETS["dgx1"]))
    count = len(devices)
    found = model.predict(Setup(workers=count, batch=2048 * count, algorithm="copy", devices=devices, base=2048))
    assert found.samples_per_s == pytest.approx(measured, rel=0.15)


def vgg() -> tuple[tuple[float, float, float], ...]:
    """VGG-16's gradients, by the operations of its layers: the fully connected ones come first, at once."""
    sizes = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), *[(256, 256)] * 2, (256, 512), *[(512, 512)] * 5]
    pixels = [224] * 2 + [112] * 2 + [56] * 3 + [28] * 3 + [14] * 3
    layers = [(4096 * 1000, 1), (4096 * 4096, 1), (25088 * 4096, 1)]
    layers += [(9 * a * b, edge * edge) for (a, b), edge in reversed(list(zip(sizes, pixels, strict=True)))]
    total = sum(parameters * uses for parameters, uses in layers)
    found, done = [], 0.0
    for parameters, uses in layers:
        done += parameters * uses / total
        found.append((4.0 * parameters, done, done))
    return tuple(found)


# Horovod on hosts with 4 P100 and 25 Gbit/s each, batch 64, buffers of 64 MB, NCCL's ring. Images/s on one GPU: those
# of TensorFlow's benchmarks; of ResNet-101, a sixteenth of 1,656.82 on 16 GPUs at the efficiency predicted there.
HOROVOD = {
    "Inception V3": (142, even(95.4 * MB), {128: 0.90, 512: 0.90}),
    "ResNet-101": (109, even(178 * MB), {128: 0.90, 512: 0.90}),
    "VGG-16": (154, vgg(), {128: 0.79, 512: 0.68}),
}


def efficiency(name: str, workers: int, latency: float = 10e-6) -> float:
    speed, ready, _ = HOROVOD[name]
    cluster = Cluster(host=PRESETS["pcie8"].host, hosts=workers // 4, slots=4, gbit_per_s=25, latency=latency)
    setup = Setup(workers=workers, batch=64 * workers, algorithm="ring", bucket=64 << 20, base=64)
    return Model(work(64 / speed, 64, ready), Fabric(cluster)).predict(setup).efficiency


@pytest.mark.parametrize("name", HOROVOD)
def test_horovods_efficiency_on_512_gpus(name):
    assert efficiency(name, 512) == pytest.approx(HOROVOD[name][2][512], abs=0.05)


@pytest.mark.parametrize("name", HOROVOD)
def test_horovods_efficiency_on_128_gpus(name):
    """Without a measured scatter nobody is late, so the easy models come out a little too well."""
    assert efficiency(name, 128) == pytest.approx(HOROVOD[name][2][128], abs=0.06)


def test_vgg_scales_worst_and_latency_is_why_a_ring_does():
    assert efficiency("VGG-16", 512) < min(efficiency("Inception V3", 512), efficiency("ResNet-101", 512)) - 0.2
    assert efficiency("VGG-16", 512, latency=20e-6) < efficiency("VGG-16", 512) - 0.05


def test_thirty_thousand_gpus_need_a_tree():
    """A ring's latency grows with the workers, a tree's with their logarithm; the bytes of a host do not grow."""
    cluster = msgspec.structs.replace(PRESETS["dgxh100"], hosts=3750)
    model = Model(work(0.5, 64, even(2e9)), Fabric(cluster))

    def at(workers: int, algorithm: str) -> float:
        return model.predict(Setup(workers=workers, batch=64 * workers, algorithm=algorithm, base=64)).efficiency

    assert at(64, "ring") > 0.9
    assert at(30_000, "ring") < 0.1
    assert at(30_000, "tree") > 0.9
    assert at(30_000, "hierarchical") > 0.9
    # Small exchanges go round a ring of all workers.
    chatty = msgspec.structs.replace(model.workload, messages=3)
    setup = Setup(workers=30_000, batch=64 * 30_000, algorithm="tree", base=64)
    found = Model(chatty, Fabric(cluster)).predict(setup)
    assert found.efficiency == pytest.approx(0.36, abs=0.01)
    assert found.bottleneck == "small exchanges: 3 a step over 30,000 workers"
