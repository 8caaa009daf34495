"""A GPT trainer as people write them: batches from a token array, gradient clipping, optionally torch.compile and bf16
autocast. The benchmarks run it unchanged under plain python and under paceline.

    python benchmarks/gpt_trainer.py --steps 600                          # eager: launch-bound on a GPU
    python benchmarks/gpt_trainer.py --steps 600 --compile --autocast     # as its author ships it

Prints the loss every `--log-every` steps, and the median, smallest and largest milliseconds of a step at the end, over
blocks of `--log-every` steps after the first `--warm-up`.

Figures, one H200, torch 2.11, `--compile --autocast --steps 500`: a step takes 10.5 and 11.6 ms under plain python, and
2.79 and 2.77 ms under `paceline run -n 1 --mod cuda_graphs`: 3.8 and 4.2 ×, with the same losses. The aim is 2.5 ×.
"""

import argparse
import contextlib
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(y.transpose(1, 2).contiguous().view(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, words, tokens, layers, width, heads):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.words.weight = self.head.weight

    def forward(self, ids, targets=None):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser(description="Train a GPT on generated text.")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--words", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(1337)
    text = torch.randint(args.words, (1_000_000,))
    text[1::2] = (text[::2] * 7 + 1) % args.words  # every other word follows from the one before it

    def get_batch():
        starts = torch.randint(len(text) - args.tokens - 1, (args.batch_size,)).tolist()
        x = torch.stack([text[at : at + args.tokens] for at in starts])
        y = torch.stack([text[at + 1 : at + 1 + args.tokens] for at in starts])
        if args.device == "cuda":
            return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)
        return x, y

    model = GPT(args.words, args.tokens, args.layers, args.width, args.heads).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=args.device == "cuda")
    if args.compile:
        model = torch.compile(model)
    autocast = torch.autocast(args.device, torch.bfloat16) if args.autocast else contextlib.nullcontext()

    def learning_rate(step):
        return 6e-4 * min(1.0, (step + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * step / args.steps))

    times, began = [], time.perf_counter()
    x, y = get_batch()
    for step in range(1, args.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        with autocast:
            _, loss = model(x, y)
        x, y = get_batch()  # while the GPU computes
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.log_every == 0:
            value, now = loss.item(), time.perf_counter()
            print(f"iter {step}: loss {value:.6f}", flush=True)
            if step > args.warm_up:
                times.append((now - began) / args.log_every * 1000)
            began = now
    print(f"step: {statistics.median(times):.4f} ms ({min(times):.4f} - {max(times):.4f})")


if __name__ == "__main__":
    main()
