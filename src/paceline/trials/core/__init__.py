"""What all series of trials share."""
