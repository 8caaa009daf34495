"""The cost per step of matrix products, by the hardware that computed them: for the rules about precision."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from paceline.advise.evidence import Evidence

# Peak rates differ more (15 × between float32 and bfloat16 on a Hopper GPU), but memory bandwidth limits products too.
FROM_FLOAT32_TO_HALF = 6.0
FROM_FLOAT32_TO_TF32 = 4.0
FROM_TF32_TO_HALF = 1.7  # the peak rate is 2 ×
SHORTEST = 4e-6  # seconds of a kernel that no precision makes shorter: its start and end
HALF = r"BFloat16|Half|Float8"


@dataclass(frozen=True, slots=True)
class Products:
    """Device seconds per step in products whose inputs are float32."""

    plain: float  # on ordinary cores
    plain_kernels: float
    rounded: float  # on tensor cores: TF32
    rounded_kernels: float
    compute: float  # all kernels

    @property
    def share(self) -> float:
        """The fraction of the device's compute."""
        return (self.plain + self.rounded) / self.compute if self.compute else 0.0

    @property
    def plain_share(self) -> float:
        return self.plain / self.compute if self.compute else 0.0

    def saved_by_tf32(self) -> float:
        return _saved(self.plain, self.plain_kernels, FROM_FLOAT32_TO_TF32)

    def saved_by_half(self) -> float:
        return _saved(self.plain, self.plain_kernels, FROM_FLOAT32_TO_HALF) + _saved(
            self.rounded, self.rounded_kernels, FROM_TF32_TO_HALF
        )


def products(evidence: Evidence) -> Products | None:
    """The products of a step; None if no device was traced."""
    if not evidence.device:
        return None
    rows = evidence.ops.filter(
        pl.col("eligible") & (pl.col("device_self") > 0) & ~pl.col("types").cast(pl.String).str.contains(HALF)
    )
    used = pl.col("tensor_cores").fill_null(0.0)
    sums = {
        f"{name}{kernels}": (share * pl.col(figure)).sum()
        for name, share in (("plain", 1 - used), ("rounded", used))
        for figure, kernels in (("device_self", ""), ("kernels", "_kernels"))
    }
    return Products(**rows.select(**sums).row(0, named=True), compute=evidence.device["compute"])


def tensor_cores_for(evidence: Evidence) -> tuple[bool, bool]:
    """Whether the device has tensor cores for half precision, and for TF32 and bfloat16. Unknown counts as yes."""
    major = evidence.gpu.get("computeMajor", 9)
    return major >= 7, major >= 8


def _saved(time: float, kernels: float, factor: float) -> float:
    return time - max(time / factor, min(time, kernels * SHORTEST))


# -- convolutions -----------------------------------------------------------------------------------------------------


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
