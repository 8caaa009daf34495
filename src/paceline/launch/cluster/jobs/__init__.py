"""Jobs for schedulers, as text: one file a scheduler."""
