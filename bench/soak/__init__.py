"""Runs the pipeline's real processes under load and faults, and compares all audio with that of a fault-free run."""
