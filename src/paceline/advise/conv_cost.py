"""The cost per step of convolutions, and of other ops by name: for the rules about them."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence

CONVOLUTION = r"^aten::(_?convolution|cudnn_convolution|mkldnn_convolution|convolution_backward|conv[123]d|_slow_conv)"
CALLED = r"^aten::conv2d$|^aten::convolution$|^aten::cudnn_convolution$"
CONVERSION = r"(?i)nchwToNhwc|nhwcToNchw"


def time_of(evidence: Evidence, pattern: str) -> float:
    """Seconds per step in ops whose name matches: device time if there is a device, else host time under the
    profiler."""
    if not evidence.traces:
        return 0.0
    rows = evidence.ops.filter((pl.col("kind") == "op") & pl.col("name").str.contains(pattern))
    return float(rows["device_self" if evidence.has_device else "host_self"].sum())


def convolution_time(evidence: Evidence) -> float:
    return time_of(evidence, CONVOLUTION)


def conversion_time(evidence: Evidence) -> float:
    """Device seconds per step in layout conversions, which cuDNN makes if tensors are not in its kernels' layout."""
    if not evidence.has_device:
        return 0.0
    return float(evidence.kernels.filter(pl.col("name").str.contains(CONVERSION))["total"].sum())


def convolution_shapes(evidence: Evidence) -> int:
    """The number of different convolution shapes."""
    rows = evidence.ops.filter((pl.col("kind") == "op") & pl.col("name").str.contains(CALLED))
    return rows["shapes"].n_unique()
