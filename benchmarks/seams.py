"""Overhead of the seams and the recorder: the loop of examples/cnn.py, with and without them, in one process.

    python benchmarks/seams.py                               # on a CPU with a small model, for a short step
    PYTHONPATH=src:.gpu-site python3 benchmarks/seams.py     # on a GPU, the example's own sizes
    PYTHONPATH=src:.gpu-site python3 benchmarks/seams.py --gpt    # the eager GPT of benchmarks/gpt_trainer.py, on a GPU
    python benchmarks/seams.py --profile                     # time of each function of paceline

Two processes never have the same conditions, and these steps are short. So one process trains all the time, and the
seams are installed and removed every few steps. The median step of each block is compared with the neighbouring block
of the other kind.

Figures: on a GPU (H200) a step of 4.1 to 4.8 ms takes 0.19 to 0.28 ms longer, 0.944 to 0.954; on CPUs a step of 5 to
6.5 ms takes 0.08 to 0.17 ms longer, 0.966 to 0.984. About 60 µs of this are Python calls, the rest is cache misses.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from side_by_side import ROOT, ratio

sys.path.insert(0, str(ROOT / "examples"))
import cnn
import gpt_trainer
import pictures
from torch.utils.data import DataLoader, TensorDataset

from paceline.comm.group import Group
from paceline.record.writer import StepWriter
from paceline.script.notices import Notices
from paceline.script.recorder import Recorder
from paceline.script.seams import instrument
from paceline.script.seams.stage import Stage
from paceline.settings import RunSettings, WorkerSettings
from paceline.strategies.mirrored import Mirrored


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the overhead of the seams, in microseconds per step.")
    parser.add_argument("--blocks", type=int, default=60, help="blocks of each kind")
    parser.add_argument("--steps", type=int, default=25, help="steps in a block")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--gpt", action="store_true", help="a GPT without a DataLoader, in place of the CNN")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    batch = args.batch_size or (256 if args.device == "cuda" else 4)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if args.gpt:
        model: torch.nn.Module = gpt_trainer.GPT(2048, 128, 8, 256, 4).to(args.device)
        words = torch.randint(2048, (args.batch_size or 16, 128), device=args.device)
    else:
        x, y, *_ = pictures.load("fashion", None, args.steps * batch, 10)
        loader = DataLoader(TensorDataset(x, y), batch, shuffle=True)
        model = cnn.CNN(x.shape[1], x.shape[2], 10, 0.0).to(args.device)

    with tempfile.TemporaryDirectory() as folder:
        run = RunSettings(script=cnn.__file__)
        stage = Stage(run, Group(WorkerSettings(run=run, record=folder)))
        Mirrored().on_stage(stage)
        Recorder(stage, StepWriter(Path(folder) / "steps.jsonl"))
        stage.subscribe(Notices(stage))
        stage.has_optimizer = True
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

        def train_gpt() -> None:
            for _ in range(args.steps):
                _, loss = model(words, words)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            loss.item()

        def block() -> float:
            began = time.perf_counter()
            if args.gpt:
                train_gpt()
            else:
                cnn.train(model, loader, optimizer, args.device, 1, 1000)
            return (time.perf_counter() - began) / args.steps

        profile = cProfile.Profile()
        with_seams, without = [], []
        for number in range(args.blocks + 4):
            without.append(block())
            lose = instrument.find(stage)
            if args.profile:
                profile.enable()
            with_seams.append(block())
            profile.disable()
            lose()
            if number < 4:  # warm-up
                with_seams.clear()
                without.clear()
    added = [(a - b) * 1e6 for a, b in zip(with_seams, without, strict=True)]
    print(f"a step without: {statistics.median(without) * 1e6:.0f} µs; added: {statistics.median(added):.0f} µs")
    print(f"speed with / without: {ratio([1 / s for s in with_seams], [1 / s for s in without])}")
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats("paceline|cuda", 25)


if __name__ == "__main__":
    main()
