"""`converge`: accuracy of large-batch techniques."""
