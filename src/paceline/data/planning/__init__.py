"""The plan of a pipeline: turns the stages that the user wrote into nodes and cursors."""
