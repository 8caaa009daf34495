"""Outputs that stay sharded: the whole batch's shape, this worker's rows in memory."""
