"""Layer-wise optimizers: LARS and LAMB."""
