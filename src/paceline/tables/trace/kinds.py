"""Classifies events by name: communication kernels, kernels on tensor cores, ops that could use tensor cores.

A trace has nothing but names for this. They come from NCCL, cuBLAS, cuDNN, CUTLASS, Triton and torch, in versions of
several years; an unknown kernel counts as ordinary compute.
"""

from __future__ import annotations

import polars as pl

# NCCL and similar libraries, and torch's own collectives through symmetric memory.
COMMUNICATION = (
    r"^(void )?(nccl|rccl|msccl|nvshmem)|AllReduce_|AllGather_|ReduceScatter_|SendRecv|"
    r"(one|two)_shot_all_reduce|multimem_(all|one|two)_|cross_device_reduce"
)
# 884, 1688, 16816 … are shapes of tensor-core instructions; nvjet kernels are cuBLAS's for Hopper and Blackwell.
# cuDNN's xmma kernels have tensor16x8x16 in their name, and nothing like that if they run on ordinary cores.
TENSOR_CORES = (
    r"[hisc]884|[hisc]?1688|16816|16832|[_x]mma_sm|tensorop|tensor\d+x\d+x\d+|hmma|imma|wgmma|gmma|nvjet|"
    r"flash_(fwd|bwd)|fmha_(cutlass|v2|fwd|bwd)|cudnn_generated_fort_native_sdpa|sm(8|9|10)\d_xmma.*(tf32|f16|bf16|e4m3)"
)
# Ops that compute matrix products internally.
ELIGIBLE = (
    r"^aten::(_?addmm|mm|bmm|baddbmm|addbmm|matmul|linear|einsum|_scaled_mm|_grouped_mm|"
    r"(_|cudnn_|mkldnn_|miopen_)?convolution(_overrideable|_backward|_transpose|_relu|_add_relu)?|conv[123]d|"
    r"_?scaled_dot_product\w*|_?efficient_attention\w*|_flash_attention\w*|_cudnn_rnn\w*|lstm|gru)$"
)
# Host calls that wait until the device has finished its work.
SYNCHRONISING = (
    r"^(cuda|hip)(Device|Stream|Event|Ctx)Synchronize|^cu(Ctx|Stream|Event)Synchronize|"
    r"^(cuda|hip)Memcpy(2D|3D)?$|^cuMemcpy(HtoD|DtoH)(_v2)?$|^(cuda|hip)(Free|FreeHost)$"
)
# Waits of the script for input: Paceline's own mark, and torch's mark around a DataLoader.
INPUT = r"^(data|paceline\.data)$|^enumerate\(DataLoader\)#|DataLoader.*__next__"
# Waits of the host for peers: Paceline's own mark, and the host side of blocking collectives.
PEERS = r"^(communication|paceline\.communication)$|^gloo:|^c10d::barrier|^mpi:"
STEP = r"^ProfilerStep[#*]"


def of_communication(names: pl.Series) -> pl.Series:
    """Whether each kernel communicates with another device."""
    return _says(names, COMMUNICATION)


def uses_tensor_cores(names: pl.Series) -> pl.Series:
    """Whether each kernel runs on tensor cores."""
    return _says(names, TENSOR_CORES)


def could_use_tensor_cores(names: pl.Series) -> pl.Series:
    """Whether each op computes a matrix product internally."""
    return _says(names, ELIGIBLE)


def says(names: pl.Series, pattern: str) -> pl.Series:
    """Whether each name matches one of the patterns above."""
    return _says(names, pattern)


def _says(names: pl.Series, pattern: str) -> pl.Series:
    """Each distinct name is matched once, however often it occurs."""
    if not isinstance(names.dtype, pl.Enum):
        return names.str.contains(pattern)
    known = names.dtype.categories
    return known.str.contains(pattern).gather(names.to_physical())
