"""A record, read into polars frames: one file a question, one function an answer. No torch, no plotting.

Begin with `records.read_record(folder)` or `records.read_files(paths)`: a `Tables` has `traces`, one a rank, and
`steps`.

Of a trace (each gives a row's `rank`; `Tables.over_ranks(table)` puts all ranks together):

    ops.ops                which ops                      op_types.op_types      … by type
    kernels.kernels        which kernels                  kernels.kernels_by_op  … for which ops
    steps.breakdown        phases of each step (host)     timeline.timeline      what the device did, idle by cause
    overlap.overlap        communication under compute    launches.launches      too many small kernels?
    memory.memory          memory over time               memory.memory_peaks    … at its highest
    modules.modules        which modules (`--stack`)      waits.waits            which lines wait for the device

Of the step record: `iterations.iterations`, `stragglers.lags`, `stragglers.stragglers`; of two runs:
`difference.difference`, `difference.difference_of_ops`; of the samples: `devices.host_samples`, `gpu_samples`,
`worker_samples`.
"""
