"""The plan of a pipeline: from the stages that were written down to nodes and cursors."""
