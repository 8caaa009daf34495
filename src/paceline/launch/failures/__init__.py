"""Which failure ended a run, and what a person reads about it."""
