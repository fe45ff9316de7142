"""Discrete-event simulator of the pipeline. The tuner runs against it thousands of times faster than in real time."""

from simulator.scenario import TASK_TYPES, Costs, Curve, Decoder, Failure, Scenario, line
from simulator.world import EPOCH, Outcomes, World, clock, fixed, good, goodput, since_epoch

__all__ = [
    "EPOCH",
    "TASK_TYPES",
    "Costs",
    "Curve",
    "Decoder",
    "Failure",
    "Outcomes",
    "Scenario",
    "World",
    "clock",
    "fixed",
    "good",
    "goodput",
    "line",
    "since_epoch",
]
