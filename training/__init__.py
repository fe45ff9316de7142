"""How the bundled voice is made, from text to a checkpoint: `python -m training all --out DIR`."""
