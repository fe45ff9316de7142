"""Trains the bundled voice, from text to a checkpoint: `python -m training all --out DIR`."""
