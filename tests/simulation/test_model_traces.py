"""Simulated runs of the real services violate nothing, and do what the model of the protocol allows."""

import pytest

from support.memory_redis import MemoryRedis
from support.simulation import scenario
from tests.simulation.model.recorder import record_memory_redis
from tests.simulation.model.trace import validate

SEEDS = 20


@pytest.fixture
def recorders(monkeypatch):
    """The recorders of all runs."""
    recorders = []

    def recorded(*arguments):
        redis = MemoryRedis(*arguments)
        recorders.append(record_memory_redis(redis))
        return redis

    monkeypatch.setattr(scenario, "MemoryRedis", recorded)
    return recorders


def test_runs_violate_nothing_and_the_model_allows_their_traces(recorders):
    for seed in range(SEEDS):
        assert scenario.run(seed).violations == [], f"replay seed {seed} with python -m support.simulation"
        assert validate(recorders[-1].actions) == [], f"seed {seed}"
    actions = [action for recorder in recorders for action in recorder.actions]
    assert {action.name for action in actions} >= {"submit", "claim", "accept", "refresh", "append", "release"}
    assert len(actions) > 1000
