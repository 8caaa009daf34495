"""What convolutions cost a step: for the rules about them."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence

CONVOLUTION = r"^aten::(_?convolution|cudnn_convolution|mkldnn_convolution|convolution_backward|conv[123]d|_slow_conv)"
CONVERSION = r"(?i)nchwToNhwc|nhwcToNchw"


def convolution_time(evidence: Evidence) -> float:
    """Seconds of a step: of the device where there is one, else of the host, under the profiler."""
    if not evidence.traces:
        return 0.0
    rows = evidence.ops.filter((pl.col("kind") == "op") & pl.col("name").str.contains(CONVOLUTION))
    return float(rows["device_self" if evidence.has_device else "host_self"].sum())


def conversion_time(evidence: Evidence) -> float:
    """Seconds of the device in turning pictures round, which cuDNN does where they lie as its kernels do not want."""
    rows = evidence.kernels.filter(pl.col("name").str.contains(CONVERSION)) if evidence.has_device else None
    return 0.0 if rows is None else float(rows["total"].sum())


def convolution_shapes(evidence: Evidence) -> int:
    """How many shapes of convolutions there were."""
    rows = evidence.ops.filter(
        (pl.col("kind") == "op") & pl.col("name").str.contains(r"^aten::conv2d|^aten::convolution$")
    )
    return rows["shapes"].n_unique()
