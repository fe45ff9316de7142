"""Discrete-event simulator of the pipeline. The tuner runs against it thousands of times faster than in real time."""
