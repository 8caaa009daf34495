"""Losses of scripts that everybody knows, unchanged, under paceline and under plain python, on one GPU.

    PYTHONPATH=src:.gpu-site python3 benchmarks/known_scripts.py --nanogpt CHECKOUT    # about four minutes
    python benchmarks/known_scripts.py --only bert-compiled --small                    # on CPU cores, to try it

`nanogpt` is train.py of https://github.com/karpathy/nanoGPT as its author ships it (compiled, bf16, dropout 0.2), with
its config train_shakespeare_char.py; CHECKOUT needs its prepared data (data/shakespeare_char/prepare.py). `gpt2` and
`bert` are transformers_trainer.py. A case has four sides, which run beside each other: plain python twice, `-n 1`, and
`-n 2` with both workers on this GPU. The figure is the largest relative difference of a printed loss from the first of
them, in the first 50 and in all losses. float32 is without TF32, which rounds a slice differently from a batch.

On one H200 with torch 2.11, 200 steps (nanoGPT) and 50 (first 50 / all):

| case | python again | -n 1 | -n 2 |
|---|---|---|---|
| nanogpt | 1.2e-4 / 8.4e-3 | 8.1e-5 / 6.0e-3 | 8.1e-5 / 1.1e-2 |
| nanogpt-float32 | 0 / 1.3e-4 | 0 / 1.8e-4 | 0 / 4.4e-5 |
| nanogpt-eager | 0 / 4.4e-5 | 0 / 1.7e-4 | 0 / 8.7e-5 |
| gpt2 | 0 | 0 | 1.4e-7 |
| gpt2-compiled | 1.4e-7 | 1.4e-7 | 1.4e-7 |
| bert | 0 | 0 | 6.3e-7 |
| bert-compiled | 6.3e-7 | 6.3e-7 | not measured |
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from side_by_side import PACELINE, ROOT, run

LOSS = re.compile(r"(?:iter|step) \d+:? (?:train )?loss (-?[\d.]+)")
NANOGPT = {
    "nanogpt": [],
    "nanogpt-float32": ["--dtype=float32"],
    "nanogpt-eager": ["--dtype=float32", "--compile=False"],
}
TRANSFORMERS = {
    "gpt2": ["gpt2"],
    "gpt2-compiled": ["gpt2", "--compile"],
    "bert": ["bert"],
    "bert-compiled": ["bert", "--compile"],
}
TWO = [*PACELINE, "run", "-n", "2", *(["--backend", "gloo"] if torch.cuda.is_available() else []), "--quiet"]
SIDES = {
    "python again": [sys.executable],
    "paceline -n 1": [*PACELINE, "run", "-n", "1", "--quiet"],
    "paceline -n 2": TWO,
}


def script(case: str, steps: int, small: bool) -> list[str]:
    """The command of a case, without what runs it."""
    if case in TRANSFORMERS:
        return [
            str(ROOT / "benchmarks" / "transformers_trainer.py"),
            *TRANSFORMERS[case],
            f"--steps={min(steps, 50)}",
            *(["--layers=1", "--width=48"] if small else []),
        ]
    sizes = ["--n_layer=1", "--n_embd=48", "--block_size=32", "--batch_size=8", "--device=cpu"] if small else []
    return [
        "train.py",
        "config/train_shakespeare_char.py",
        f"--max_iters={steps - 1}",
        "--log_interval=1",
        "--eval_iters=10",
        *NANOGPT[case],
        *sizes,
    ]


def losses(command: list[str], case: str, nanogpt: Path | None) -> list[float]:
    """What a side printed. It compiles for itself: a cache that another side filled would hide a wrong graph."""
    with tempfile.TemporaryDirectory() as cache:
        env = {"TORCHINDUCTOR_CACHE_DIR": cache, **({} if case == "nanogpt" else {"NVIDIA_TF32_OVERRIDE": "0"})}
        return [float(found[1]) for line in run(command, env, nanogpt) if (found := LOSS.match(line.text))]


def furthest(expected: list[float], found: list[float]) -> str:
    if len(expected) != len(found):
        return f"{len(found)} losses instead of {len(expected)}"
    apart = [abs(a - b) / max(abs(a), 1e-12) for a, b in zip(expected, found, strict=True)]
    return f"{max(apart[:50]):.1e} in 50 losses, {max(apart):.1e} in {len(apart)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the losses of well-known scripts with plain python's.")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT with prepared data")
    parser.add_argument("--only", nargs="+", choices=(*NANOGPT, *TRANSFORMERS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--small", action="store_true", help="models for CPU cores")
    parser.add_argument("--together", type=int, default=4, help="sides that run beside each other")
    args = parser.parse_args()
    cases = args.only or [*(NANOGPT if args.nanogpt else []), *TRANSFORMERS]
    with ThreadPoolExecutor(args.together) as pool:
        started = {
            case: {
                side: pool.submit(losses, [*runner, *script(case, args.steps, args.small)], case, args.nanogpt)
                for side, runner in {"python": [sys.executable], **SIDES}.items()
            }
            for case in cases
        }
        for case, sides in started.items():
            expected = sides["python"].result()
            print(f"{case}: first loss {expected[0]}, last {expected[-1]}")
            for side in SIDES:
                try:
                    print(f"  {side}: {furthest(expected, sides[side].result())}", flush=True)
                except SystemExit as error:
                    print(f"  {side}: {error}", flush=True)


if __name__ == "__main__":
    main()
