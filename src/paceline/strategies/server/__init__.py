"""The parameter server: its processes, its transport, and the workers' side of it."""
