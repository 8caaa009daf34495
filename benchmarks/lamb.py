"""A step of LAMB and LARS on one GPU, against torch's fused optimizers, on tensors of ResNet-50 and of a GPT.

    PYTHONPATH=src:.gpu-site python3 benchmarks/lamb.py                      # about a minute
    PYTHONPATH=src:.gpu-site python3 benchmarks/lamb.py --blocks 2048,4096,8192 --warps 4,8

First each fused form is compared with the foreach form, and a captured step with an uncaptured one. Then the sides
alternate. A round is several steps between two CUDA events, so that a host slower than the device counts; the times of
host and device alone are printed too. "moving": the gradients have other addresses in every other step. Aims: LAMB at
most 0.5 × AdamW(fused=True) on ResNet-50's 161 tensors, and 0.95 × on the GPT's 290.

Figures, one H200, torch 2.11, 7 rounds:

    ResNet-50  LAMB 0.296 ms (device alone 0.263, host alone 0.292), AdamW 0.614 (0.262, 0.735): 0.482 (0.412 – 0.587);
               with moving gradients 0.565 (0.509 – 0.831). LARS / SGD 0.635 (0.515 – 0.674).
    GPT        LAMB 3.476 ms, AdamW 2.973: 1.169 (1.168 – 1.171). LARS / SGD 1.195. LAMB makes ten passes over
               memory (a layer's norms are known only after the whole layer was read, so updates are read again),
               AdamW seven; ten passes at the rate of a copy take 3.35 ms. Two fused variants, whose second pass runs
               while the layer is in the cache, were slower: persistent programs took 4.5 to 5.9 ms, and tickets with
               the updates in a ring buffer that fits into the cache 3.8 to 5.9 ms, in twelve settings.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from side_by_side import in_turn, ratio
from torch import nn

import paceline as pl
from paceline.converge.optimizers import kernels, tensor_tables

Shapes = list[tuple[int, ...]]
SIDES: dict[str, Callable[..., Any]] = {
    "LAMB": lambda p: pl.LAMB(p, lr=1e-4, weight_decay=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-4, weight_decay=0.01, fused=True),
    "LARS": lambda p: pl.LARS(p, lr=1e-2, weight_decay=0.01),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, weight_decay=0.01, fused=True),
}


def resnet50() -> Shapes:
    """161 tensors, 25.6 M parameters."""
    shapes: Shapes = [(64, 3, 7, 7), (64,), (64,)]
    inner, outer = 64, 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            for shape in ((inner, outer, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if block == 0:
                shapes += [(4 * inner, outer, 1, 1), (4 * inner,), (4 * inner,)]
            outer = 4 * inner
    return [*shapes, (1000, 2048), (1000,)]


def gpt() -> Shapes:
    """290 tensors, 355 M parameters."""
    w = 1024
    block: Shapes = [(w,), (w,), (3 * w, w), (3 * w,), (w, w), (w,), (w,), (w,), (4 * w, w), (4 * w,), (w, 4 * w), (w,)]
    return [(50257, w), (1024, w), *(block * 24)]


def tensors(shapes: Shapes) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, device="cuda") * 0.02) for shape in shapes]


def gradients(parameters: list[nn.Parameter], seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn_like(parameter) * 0.01 for parameter in parameters]


def give(parameters: list[nn.Parameter], grads: list[torch.Tensor]) -> None:
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad


def difference(one: list[nn.Parameter], other: list[nn.Parameter], start: list[torch.Tensor]) -> float:
    """The largest relative difference of two sides' updates, over all tensors."""
    return max(
        float((p - q).norm() / (q - s).norm().clamp_min(1e-30)) for p, q, s in zip(one, other, start, strict=True)
    )


def check(shapes: Shapes) -> None:
    """Compares three steps of the fused form with the foreach form, and checks that a repetition is bit-identical."""
    for kind in (pl.LAMB, pl.LARS):
        sides = [tensors(shapes) for _ in range(3)]
        start = [p.detach().clone() for p in sides[0]]
        optimizers = [kind(side, lr=0.1, fused=form) for side, form in zip(sides, (None, None, False), strict=True)]
        for step in range(3):
            for side, optimizer in zip(sides, optimizers, strict=True):
                give(side, gradients(side, step))
                optimizer.step()
        again = all(torch.equal(p, q) for p, q in zip(sides[0], sides[1], strict=True))
        far = difference(sides[0], sides[2], start)
        print(f"  {kind.__name__}: fused against foreach {far:.1e}; again {'the same' if again else 'OTHER NUMBERS'}")
        assert far < 1e-4
        assert again


def check_capture(shapes: Shapes) -> None:
    """Compares steps in a CUDA graph with the same steps outside a graph."""
    for kind in (pl.LAMB, pl.LARS):
        one, other = tensors(shapes), tensors(shapes)
        first, second = kind(one, lr=0.1, capturable=True), kind(other, lr=0.1)
        for side, optimizer in ((one, first), (other, second)):
            give(side, gradients(side, 0))
            optimizer.step()
        give(one, gradients(one, 1))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            first.step()
        for step in range(1, 4):
            fresh = gradients(other, step)
            give(other, fresh)
            for parameter, grad in zip(one, fresh, strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(grad)
            graph.replay()
            second.step()
        same = all(torch.equal(p, q) for p, q in zip(one, other, strict=True))
        print(f"  {kind.__name__} in a graph: {'the same' if same else 'OTHER NUMBERS'}")
        assert same


def check_scaler() -> None:
    """Checks a gradient scaler with the fused form: an overflow skips the step, and does not count it."""
    torch.manual_seed(0)
    layer, plain = nn.Linear(64, 64, device="cuda"), nn.Linear(64, 64, device="cuda")
    plain.load_state_dict(layer.state_dict())
    pair = pl.LAMB(layer.parameters()), pl.LAMB(plain.parameters(), fused=False)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    for step in range(4):
        x = torch.randn(8, 64, device="cuda") * (float("inf") if step == 1 else 1.0)
        for model, optimizer in zip((layer, plain), pair, strict=True):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if model is layer:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            elif step != 1:
                loss.backward()
                optimizer.step()
    far = max(float((p - q).abs().max()) for p, q in zip(layer.parameters(), plain.parameters(), strict=True))
    print(f"  gradient scaler: {far:.1e}")
    assert far < 1e-5


def side(make: Callable[..., Any], shapes: Shapes, steps: int, *, moving: bool = False) -> Callable[[], float]:
    """Milliseconds per step."""
    parameters = tensors(shapes)
    sets = [gradients(parameters, seed) for seed in range(2 if moving else 1)]
    give(parameters, sets[0])
    optimizer = make(parameters)
    for _ in range(5):
        optimizer.step()

    def measure() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for step in range(steps):
            if moving:
                give(parameters, sets[step % 2])
            optimizer.step()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / steps

    return measure


def apart(make: Callable[..., Any], shapes: Shapes, steps: int) -> tuple[float, float]:
    """Milliseconds per step of the device alone (steps in a graph), and of the host alone (without waiting)."""
    parameters = tensors(shapes)
    give(parameters, gradients(parameters, 0))
    optimizer = make(parameters)
    for group in optimizer.param_groups:
        group["capturable"] = True
    for _ in range(5):
        optimizer.step()
    asked = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            optimizer.step()
        asked.append((time.perf_counter() - begin) * 100)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    for _ in range(steps):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / steps, statistics.median(asked)


def copies(shapes: Shapes) -> float:
    """Milliseconds of seven passes over memory at the rate of a large copy."""
    a = torch.empty(1 << 28, device="cuda")
    b = torch.empty_like(a)
    b.copy_(a)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(10):
        b.copy_(a)
    end.record()
    end.synchronize()
    per_byte = start.elapsed_time(end) / 10 / (2 * a.nbytes)
    return 7 * 4 * per_byte * sum(torch.Size(shape).numel() for shape in shapes)


def compare(name: str, shapes: Shapes, rounds: int, steps: int, aim: float) -> None:
    print(f"{name}: {len(shapes)} tensors, {sum(torch.Size(s).numel() for s in shapes) / 1e6:.1f} M", flush=True)
    made = {label: side(make, shapes, steps) for label, make in SIDES.items()}
    if len(shapes) < 200:
        for label in ("LAMB", "AdamW fused"):
            made[f"{label}, moving"] = side(SIDES[label], shapes, steps, moving=True)
        made["LAMB foreach"] = side(lambda p: pl.LAMB(p, lr=1e-4, fused=False), shapes, steps)
    figures = in_turn(made, rounds, "ms")
    for label, values in figures.items():
        print(f"  {label:20} {statistics.median(values):.3f} ms ({min(values):.3f} – {max(values):.3f})")
    for label in ("LAMB", "AdamW fused", "LARS"):
        device, host = apart(SIDES[label], shapes, steps)
        print(f"  {label:20} the device alone {device:.3f} ms, the host alone {host:.3f} ms")
    print(f"  seven passes over memory: {copies(shapes):.3f} ms")
    print(f"  LAMB / AdamW fused: {ratio(figures['LAMB'], figures['AdamW fused'])}   aim {aim}")
    if "LAMB, moving" in figures:
        print(f"  … with moving gradients: {ratio(figures['LAMB, moving'], figures['AdamW fused, moving'])}")
    print(f"  LARS / SGD fused: {ratio(figures['LARS'], figures['SGD fused'])}", flush=True)


def shapes_of_kernels(blocks: list[int], warps: list[int], rounds: int, steps: int) -> None:
    """LAMB's step with different chunk sizes."""
    for name, shapes in (("ResNet-50", resnet50()), ("GPT", gpt())):
        made = {}
        for block in blocks:
            for count in warps:
                tensor_tables.BLOCK = block
                kernels.WARPS = count
                made[f"{block}/{count}"] = side(SIDES["LAMB"], shapes, steps)  # compiled at its first step
        print(f"{name}: chunk/warps")
        in_turn(made, rounds, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the step times of LAMB and AdamW.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=30, help="steps in a round")
    parser.add_argument("--blocks", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--warps", type=lambda text: [int(part) for part in text.split(",")], default=[8])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a GPU, and torch finds none.")
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    if args.blocks:
        shapes_of_kernels(args.blocks, args.warps, min(args.rounds, 3), args.steps)
        return
    check(resnet50())
    for what in (lambda: check_capture(resnet50()), check_scaler):
        try:
            what()
        except Exception as error:  # report the times all the same
            print(f"  FAILED: {type(error).__name__}: {error}")
    compare("ResNet-50", resnet50(), args.rounds, args.steps, 0.5)
    compare("GPT", gpt(), args.rounds, args.steps, 0.95)


if __name__ == "__main__":
    main()
