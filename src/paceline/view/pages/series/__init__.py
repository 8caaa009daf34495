"""The pages of verbs that run a series of trials: one file per verb."""
