"""Attention is not fused."""

from __future__ import annotations

import json

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, percent

SHARE = 0.1  # share of a step's compute: with less there is little to gain
FASTER = 3.0  # speed-up: a fused kernel neither writes nor reads the matrix of all pairs of tokens
TOKENS = 32  # tokens per row of that matrix: with fewer, the softmax is not attention, or a small one
MATH = r"_scaled_dot_product_attention_math"
SOFTMAX = r"^aten::_softmax(_backward_data)?$"
PRODUCTS = r"^aten::(bmm|baddbmm)$"


def find(evidence: Evidence) -> Finding | None:
    """Attention is computed in separate kernels: a product, a softmax over a matrix of all pairs of tokens, another
    product. Either the script does so itself, or torch's own function fell back to separate kernels.

    Fixed by hand: `torch.nn.functional.scaled_dot_product_attention`, with `is_causal` instead of a mask where
    possible, and in bf16 for the fastest kernel. Predicted: the softmax and the products over heads take a third.
    """
    if not evidence.traces:
        return None
    column = "device_self" if evidence.has_device else "host_self"
    rows = evidence.ops.filter((pl.col("kind") == "op") & (pl.col(column) > 0))
    by_math = bool(rows["name"].str.contains(MATH).any()) or evidence.marked(MATH) > 0
    tables = [
        row for row in rows.filter(pl.col("name").str.contains(SOFTMAX)).to_dicts() if _is_table(str(row["shapes"]))
    ]
    if not tables:
        return None
    time = sum(row[column] for row in tables) + float(rows.filter(pl.col("name").str.contains(PRODUCTS))[column].sum())
    clock = evidence.clock
    whole = evidence.device["compute"] if clock is not None else evidence.phases.get("wall", 0.0)
    if not whole or time < SHARE * whole:
        return None
    saved = time * (1 - 1 / FASTER)
    return Finding(
        rule="slow_attention",
        title=f"{percent(time / whole)} of the compute is attention in separate kernels"
        + (": torch's own function found no faster way" if by_math else ""),
        evidence=[
            Figure("time in softmax and products over heads", time, "s"),
            Figure("shapes of the softmax", str(tables[0]["shapes"])[:200]),
            Figure("compute" if clock else "traced step", whole, "s"),
        ],
        predicted_gain=clock.gain(device=saved) if clock is not None else whole / (whole - saved),
        how="they take a third of their time",
        advice="torch.nn.functional.scaled_dot_product_attention(q, k, v) "
        + ("without a mask, in bf16 (--mod precision=bf16)" if by_math else "instead of separate operations")
        + "; with is_causal=True if the mask only hides later tokens",
    )


def _is_table(shapes: str) -> bool:
    """Whether a softmax's input is a matrix of all pairs of tokens: … × tokens × tokens."""
    try:
        dims = json.loads(shapes)[0]
    except (ValueError, IndexError, TypeError):
        return False
    if not isinstance(dims, list) or len(dims) not in (3, 4):
        return False
    return dims[-1] >= TOKENS and dims[-2] >= TOKENS
