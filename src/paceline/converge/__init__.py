"""Large batches without a loss of accuracy: layer-wise optimizers, ghost batch norm, schedules, gradient noise scale,
sharpness."""
