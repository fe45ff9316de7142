"""Benchmark of the live tuner: `syrinx up` under load, from bad settings, beside the defaults."""
