"""What happens in simulated runs of the real services is what the model of the protocol allows."""

import pytest

from support.memory_redis import MemoryRedis
from support.simulation import scenario
from tests.simulation.model.recorder import record_memory_redis
from tests.simulation.model.trace import validate


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


def test_the_model_allows_the_traces_of_simulated_runs(recorders):
    for seed in range(25):
        scenario.run(seed)
        assert validate(recorders[-1].actions) == [], f"seed {seed}"
    actions = [action for recorder in recorders for action in recorder.actions]
    assert {action.name for action in actions} >= {"submit", "claim", "accept", "refresh", "append", "release"}
    assert len(actions) > 1000
