"""What each stage of a pipeline costs: measured, shown, recorded."""
