"""The zygote: a process that has imported torch, and forks workers."""
