"""Rules about what a device computes and copies: where each must speak, and where it must be silent."""

from __future__ import annotations

import json

import pytest
from cuda_trace import Machine
from made import FLOATS, MS, SMALL, US, evidence, figures, loading, products, small

from paceline.advise.rules import (
    channels_last,
    cudnn_benchmark,
    optimizer_step,
    pageable_copies,
    pointwise,
    slow_attention,
)
from paceline.record.facts import Facts, LoaderFacts, ModelFacts, OptimizerFacts

CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tensor16x8x8"
TURNING = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float>"


def facts(**changes) -> Facts:
    model = ModelFacts(name="Net", parameters=1000, bytes=4000, convolutions=5, device="cuda")
    return Facts(**{"threads": 1, "models": [model], **changes})


def convolutions(machine: Machine) -> None:
    """8 ms of convolutions, 1 ms of turning pictures round for them, 1 ms of the rest."""
    with machine.op("aten::cudnn_convolution", **FLOATS):
        for _ in range(8):
            machine.launch(TURNING, MS // 8)
            machine.launch(CONVOLUTION, MS)
    machine.launch(SMALL, MS)
    machine.synchronize()


# -- channels last -----------------------------------------------------------------------------------------------------


def test_convolutions_with_the_channel_first_are_named(tmp_path):
    found = channels_last.find(evidence(tmp_path, convolutions, facts=facts()))
    assert found is not None
    assert found.mod == "channels_last"
    assert figures(found)["of that, layout conversions"] == pytest.approx(0.001, rel=0.01)
    assert found.predicted_gain == pytest.approx(10 / (1 + 8 / 1.1), rel=0.05)


@pytest.mark.parametrize("why", ["channels last already", "asked for", "few convolutions", "no convolution"])
def test_channels_last_is_silent(tmp_path, why):
    told = facts()
    if why == "channels last already":
        told.models[0].channels_last = True
    if why == "no convolution":
        told.models[0].convolutions = 0
    body = products if why == "few convolutions" else convolutions
    mods = ["channels_last"] if why == "asked for" else []
    assert channels_last.find(evidence(tmp_path, body, facts=told, mods=mods)) is None


# -- cudnn.benchmark ---------------------------------------------------------------------------------------------------


def test_cudnn_benchmark_off_is_named(tmp_path):
    found = cudnn_benchmark.find(evidence(tmp_path, convolutions, facts=facts()))
    assert found is not None
    assert found.mod == "cudnn_benchmark"
    assert found.predicted_gain == pytest.approx(10 / (1 + 9 / 1.1), rel=0.05)


@pytest.mark.parametrize("why", ["on", "no convolutions", "nothing known"])
def test_cudnn_benchmark_is_silent(tmp_path, why):
    told = None if why == "nothing known" else facts(cudnn_benchmark=why == "on")
    body = products if why == "no convolutions" else convolutions
    assert cudnn_benchmark.find(evidence(tmp_path, body, facts=told)) is None


# -- kernels to fuse ---------------------------------------------------------------------------------------------------


def test_chains_of_kernels_are_named(tmp_path):
    def body(machine: Machine) -> None:
        products(machine, count=4)
        small(machine, 60, each=100 * US, host=10 * US)
        machine.synchronize()

    found = pointwise.find(evidence(tmp_path, body))
    assert found is not None
    assert found.mod == "compile"
    assert figures(found)["time in them"] == pytest.approx(0.006, rel=0.01)
    assert found.predicted_gain == pytest.approx(10 / 7, rel=0.05)


@pytest.mark.parametrize("why", ["mostly products", "of the optimizer", "compiled"])
def test_pointwise_is_silent(tmp_path, why):
    def body(machine: Machine) -> None:
        products(machine, count=10 if why == "mostly products" else 1)
        for _ in range(20):
            with machine.op("aten::_foreach_mul_" if why == "of the optimizer" else "aten::add", 2 * US):
                machine.launch(SMALL, 100 * US)
        machine.synchronize()

    mods = ["compile=default"] if why == "compiled" else []
    assert pointwise.find(evidence(tmp_path, body, mods=mods)) is None


# -- the optimizer -----------------------------------------------------------------------------------------------------


def stepping(machine: Machine) -> None:
    """8 ms of products, 2 ms of an optimizer's step."""
    with machine.annotation("paceline.forward"):
        products(machine, count=8)
    with machine.annotation("paceline.optimizer"):
        for _ in range(20):
            with machine.op("aten::_foreach_addcdiv_", 2 * US):
                machine.launch("multi_tensor_apply_kernel", 100 * US)
    machine.synchronize()


def adam(**changes) -> Facts:
    return Facts(threads=1, optimizers=[OptimizerFacts(**{"name": "AdamW", "tensors": 160, **changes})])


def stepped(tmp_path, told: Facts, **more):
    from made import step

    steps = [[step(100 + k, 0.010, optimizer=0.002) for k in range(20)]]
    return optimizer_step.find(evidence(tmp_path, stepping, steps=steps, facts=told, **more))


def test_an_optimizer_in_pieces_is_named(tmp_path):
    found = stepped(tmp_path, adam())
    assert found is not None
    assert found.mod == "fused_optimizer"
    assert found.predicted_gain == pytest.approx(10 / 8.8, rel=0.03)


@pytest.mark.parametrize("why", ["fused", "unknown", "asked for", "short"])
def test_optimizer_step_is_silent(tmp_path, why):
    told = adam(fused=why == "fused", name="Mine" if why == "unknown" else "AdamW")
    if why == "short":
        assert optimizer_step.find(evidence(tmp_path, products, facts=told)) is None
    else:
        assert stepped(tmp_path, told, mods=["fused_optimizer"] if why == "asked for" else []) is None


# -- copies ------------------------------------------------------------------------------------------------------------


def copying(machine: Machine, kind: str = "HtoD (Pageable -> Device)") -> None:
    """50 MB in 8 ms, which the host waits for, then 10 ms of the device."""
    loading(machine, 1 * MS)
    machine.copy(kind, 50_000_000, 8 * MS, wait="Pageable" in kind)
    products(machine)
    machine.synchronize()


def test_copies_from_pageable_memory_are_named(tmp_path):
    told = Facts(threads=1, loaders=[LoaderFacts(dataset="Pictures")])
    found = pageable_copies.find(evidence(tmp_path, copying, facts=told))
    assert found is not None
    assert found.mod.startswith("loader=")
    assert figures(found)["copied"] == 50_000_000
    assert 1.3 < found.predicted_gain < 1.9  # 19 ms, of which 6 of copying and 1 of loading go


def test_pinned_loaders_of_their_own_are_told_by_hand(tmp_path):
    told = Facts(threads=1, loaders=[LoaderFacts(dataset="Pictures", processes=4)])
    found = pageable_copies.find(evidence(tmp_path, copying, facts=told))
    assert found is not None
    assert not found.mod
    assert "pin_memory=True" in found.advice


def test_pageable_copies_is_silent_where_memory_is_pinned_or_copies_are_short(tmp_path):
    pinned = evidence(tmp_path / "a", lambda m: copying(m, "HtoD (Pinned -> Device)"))
    assert pageable_copies.find(pinned) is None
    short = evidence(tmp_path / "b", lambda m: (m.copy("HtoD (Pageable -> Device)", 100, US), products(m)))
    assert pageable_copies.find(short) is None


# -- attention ---------------------------------------------------------------------------------------------------------


def attention(machine: Machine, tokens: int = 80, *, math: bool = False, softmax: int = 3) -> None:
    """`softmax` ms over a table of all pairs of tokens, 2 ms of products over heads, 5 ms of the rest."""
    with machine.op("aten::_scaled_dot_product_attention_math" if math else "aten::matmul", 2 * US):
        for _ in range(2):
            with machine.op("aten::bmm", 2 * US, **FLOATS):
                machine.launch("gemm", MS)
        shapes = [[8, 4, tokens, tokens], [], []]
        with machine.op("aten::_softmax", 2 * US, **{"Input Dims": shapes, "Input type": ["float", "", ""]}):
            machine.launch("softmax_warp_forward", softmax * MS)
    products(machine, count=5)
    machine.synchronize()


@pytest.mark.parametrize("math", [False, True])
def test_attention_in_pieces_is_named(tmp_path, math):
    found = slow_attention.find(evidence(tmp_path, lambda m: attention(m, math=math)))
    assert found is not None
    assert ("no faster way" in found.title) == math
    assert "scaled_dot_product_attention" in found.advice
    assert json.loads(str(figures(found)["shapes of the softmax"]))[0] == [8, 4, 80, 80]
    assert found.predicted_gain == pytest.approx(10 / (5 + 5 / 3), rel=0.05)


def test_slow_attention_is_silent_about_a_softmax_over_classes_and_fused_attention(tmp_path):
    assert slow_attention.find(evidence(tmp_path / "a", lambda m: attention(m, tokens=10))) is None

    def fused(machine: Machine) -> None:
        with machine.op("aten::_scaled_dot_product_flash_attention", 2 * US, **FLOATS):
            machine.launch("flash_fwd_kernel", 3 * MS)
        machine.synchronize()

    assert slow_attention.find(evidence(tmp_path / "b", fused)) is None
