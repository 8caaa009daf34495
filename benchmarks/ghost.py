"""Time of ghost batch norm on one GPU against nn.BatchNorm2d: forward and backward.

    PYTHONPATH=src:.gpu-site python3 benchmarks/ghost.py            # about a minute
    PYTHONPATH=src:.gpu-site python3 benchmarks/ghost.py --small    # small tensors: the cost of kernel launches

4096 × 64 × 32 × 32 in 16 ghosts of 256, float32 as NCHW and bfloat16 with channels last. First the output and all
gradients are compared with plain operations in float64, on a smaller batch with an uneven last ghost; then the sides
alternate, timed with CUDA events. Aim: at most 1.0 × nn.BatchNorm2d, both ways.

Figures, one H200, torch 2.11 (× nn.BatchNorm2d, 5 rounds): float32 NCHW 0.270 (0.265 – 0.291), bfloat16 channels last
0.598 (0.440 – 0.947); float32 channels last 1.015 (0.896 – 1.088), bfloat16 NCHW 0.155 (0.130 – 0.178).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from side_by_side import in_turn, ratio
from torch import Tensor, nn

import paceline as pl

SHAPE, SIZE = (4096, 64, 32, 32), 256
KINDS = {
    "float32 NCHW": (torch.float32, torch.contiguous_format),
    "bfloat16 channels last": (torch.bfloat16, torch.channels_last),
    "float32 channels last": (torch.float32, torch.channels_last),
    "bfloat16 NCHW": (torch.bfloat16, torch.contiguous_format),
}
AIMED = tuple(KINDS)[:2]


class Chunks(nn.BatchNorm2d):
    """The usual implementation: a loop over the ghosts."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([super(Chunks, self).forward(chunk) for chunk in input.split(SIZE)])


def check(dtype: torch.dtype, layout: torch.memory_format) -> None:
    """Compares the kernels with plain operations in float64."""
    torch.manual_seed(0)
    x = (torch.randn(300, 64, 13, 32, device="cuda") * 2 + 5).to(dtype).to(memory_format=layout)
    up = torch.randn_like(x)
    found = []
    weight = torch.rand(64, device="cuda") + 0.5
    for wide in (False, True):
        norm = pl.GhostBatchNorm2d(64, 64).cuda()
        norm.weight.data.copy_(weight)
        mine = (x.double() if wide else x).detach().requires_grad_()
        y = (norm.double() if wide else norm)(mine)
        y.backward(up.to(y.dtype))
        assert mine.grad is not None
        assert norm.weight.grad is not None
        assert norm.bias.grad is not None
        assert norm.running_var is not None
        found.append((y.detach(), mine.grad, norm.weight.grad, norm.bias.grad, norm.running_var))
    far = [float((a.double() - b).norm() / b.norm()) for a, b in zip(*found, strict=True)]
    names = ("y", "dx", "dw", "db", "running")
    print("  against float64: " + ", ".join(f"{name} {value:.1e}" for name, value in zip(names, far, strict=True)))
    assert max(far) < (1e-4 if dtype == torch.float32 else 1e-2)


def side(norm: nn.Module, x: Tensor, times: int) -> Callable[[], float]:
    """Milliseconds of a forward and a backward."""
    x = x.detach().requires_grad_()
    up = torch.randn_like(x)

    def once() -> None:
        x.grad = None
        for parameter in norm.parameters():
            parameter.grad = None
        norm(x).backward(up)

    for _ in range(3):
        once()

    def measure() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(times):
            once()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / times

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare ghost batch norm with batch norm.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--times", type=int, default=10, help="repetitions in a round")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a GPU, and torch finds none.")
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    shape, size = ((256, 64, 8, 8), 32) if args.small else (SHAPE, SIZE)
    times = 100 if args.small else args.times
    for name, (dtype, layout) in KINDS.items():
        print(f"{name}, {shape}, ghosts of {size}", flush=True)
        check(dtype, layout)
        x = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=layout)
        sides = {
            "ghost": side(pl.GhostBatchNorm2d(shape[1], size).cuda(), x, times),
            "batch norm": side(nn.BatchNorm2d(shape[1]).cuda(), x, times),
        }
        if name in AIMED and not args.small:
            sides["by chunks"] = side(Chunks(shape[1]).cuda(), x, times)
        figures = in_turn(sides, args.rounds, "ms")
        for label, values in figures.items():
            print(f"  {label:12} {statistics.median(values):.3f} ms ({min(values):.3f} – {max(values):.3f})")
        aim = "   aim 1.0" if name in AIMED else ""
        print(f"  ghost / batch norm: {ratio(figures['ghost'], figures['batch norm'])}{aim}", flush=True)
        del x, sides
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
