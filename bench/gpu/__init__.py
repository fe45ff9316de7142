"""Benchmarks on a GPU: the engines, the service end to end, and a report of both.

Each benchmark is a command (`PYTHONPATH=bench python -m gpu.NAME`) that prints a table and writes a JSON file. The
report (`python -m gpu.report`) reads the files as the types of `gpu.results`.
"""

from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
SIZE_NAMES = {"0b6": "0.6B", "1b7": "1.7B"}
"""Names of the models by size."""
