"""Shared by all tests."""

import asyncio
import os
from collections.abc import Callable
from functools import partial

import pytest
import torch
import yaml

from support.virtual import VirtualLoop

pytest_plugins = ("support.ring.order", "support.ring.logs")

# As every stage process does on a CPU: results do not depend on the batch only on one thread.
torch.set_num_threads(1)
# Seven times as quick, with the same result: hundreds of tests read the CRD.
yaml.safe_load = partial(yaml.load, Loader=yaml.CSafeLoader)
yaml.safe_load_all = partial(yaml.load_all, Loader=yaml.CSafeLoader)


def pytest_configure(config: pytest.Config) -> None:
    """Makes each test with `@given` deterministic and independent of the machine's speed."""
    # The environment of vLLM has no hypothesis.
    if not config.pluginmanager.hasplugin("hypothesispytest"):
        return
    from hypothesis import HealthCheck, settings

    ring = settings(
        max_examples=25,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("ring", ring)
    settings.register_profile("night", ring, max_examples=1000)
    settings.load_profile(os.environ.get("SYRINX_TEST_EXAMPLES", "ring"))


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"loop": VirtualLoop if item.get_closest_marker("virtual") else asyncio.new_event_loop}
