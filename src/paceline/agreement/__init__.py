"""Do the workers agree? Compares weights, arguments, updates and losses between workers, and reports a difference."""
