"""Code shared by all series of trials: the bench, the result of a trial, the summary of a run."""
