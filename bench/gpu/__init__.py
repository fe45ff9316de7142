"""Benchmarks on a GPU: the engines, the service end to end, and a report of both.

Each benchmark is a command (`PYTHONPATH=bench python -m gpu.NAME`) that prints a table and writes a JSON file. The
report (`python -m gpu.report`) reads the files of `gpu.talker` and `gpu.codec` as `gpu.report.EngineResult` and those
of `gpu.service` as `gpu.results.ServiceRun`.
"""

from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
