"""`syrinx tune`: the state of a pipeline's tuning as text, live view, or plot."""
