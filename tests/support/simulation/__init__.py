"""Deterministic simulation of the data plane: the real services over a simulated clock, network, Redis and engines.

One seed decides everything: `python -m support.simulation --seed N` replays a run.
"""
