"""Benchmark of one hop between two stages: two processes on loopback, a real Redis, and the Syrinx connector."""
