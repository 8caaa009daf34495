"""Where a pipeline begins: samples in memory, files, image sets."""
