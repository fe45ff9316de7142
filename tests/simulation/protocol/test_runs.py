"""Runs of the deterministic simulation."""

import gc
import os
import subprocess
import sys
import weakref

import pytest

from support.simulation.faults import Fault
from support.simulation.planted import LOST_WITH_TALKERS
from support.simulation.runner import outcomes
from support.simulation.scenario import run

SEEDS = range(20, 500)
"""Those before them are the ones of `test_model_traces.py`."""
SLOW_LISTENER = {"talker": {"lead_limit_seconds": 0.3}, "codec": {}}


@pytest.mark.night
def test_no_seed_violates_the_protocol():
    failed = {result.seed: result.violations for result in outcomes(SEEDS, jobs=os.cpu_count()) if result.violations}
    assert not failed, "replay: PYTHONPATH=tests python -m support.simulation --seed N"


@pytest.mark.parametrize("seed", range(5))
def test_without_faults_every_request_is_served(seed):
    world = run(seed, faults=[])
    assert world.violations == []
    assert all(client.succeeded for client in world.clients)


@pytest.mark.night
def test_a_seed_replays_in_another_process():
    program = "from support.simulation.scenario import run; print(run(3).history.events)"
    results = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        results.add(
            subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
        )
    assert len(results) == 1


def test_rows_of_a_crashed_gateway_are_freed_also_if_nothing_else_happens():
    settings = [Fault("settings", 0.4, name, detail=SLOW_LISTENER) for name in ("talker-0", "talker-1")]
    world = run(11, faults=[*settings, Fault("crash", 2.0, "gateway-0", 0.1, "process")])
    assert any(client.cut_off for client in world.clients)
    assert world.violations == []


@pytest.mark.parametrize("seed", range(5))
def test_no_client_gets_two_takes_if_codes_are_lost_with_their_talkers(seed):
    """Other talkers sample the lost frames differently: the codecs start again, and gateways end what was published."""
    assert run(seed, faults=LOST_WITH_TALKERS).violations == []


def test_a_run_leaves_no_objects_behind():
    """Thousands of runs in one process would otherwise become slower and slower."""
    loop = weakref.ref(run(0).loop)
    gc.collect()
    assert loop() is None
