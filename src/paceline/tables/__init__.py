"""Reads a record into polars frames: one file per question, one function per answer. No torch, no plotting.

Start with `records.read_record(folder)` or `records.read_files(paths)`: a `Tables` has `traces`, one per rank, and
`steps`.

Tables of a trace (each row has its `rank`; `Tables.over_ranks(table)` concatenates all ranks):

    ops.ops                which ops                      ops.op_types           … by type
    kernels.kernels        which kernels                  kernels.kernels_by_op  … for which ops
    steps.breakdown        phases of each step (host)     timeline.timeline      what the device did, idle by cause
    timeline.overlap       communication under compute    kernels.launches       too many small kernels?
    memory.memory          memory over time               memory.memory_peaks    … at its highest
    modules.modules        which modules (`--stack`)      waits.waits            which lines wait for the device

Tables of the step record: `iterations.iterations`, `stragglers.lags`, `stragglers.stragglers`; of two runs:
`why_slower.difference`, `why_slower.difference_of_ops`; of the samples: `devices.host_samples`, `gpu_samples`,
`worker_samples`.
"""
