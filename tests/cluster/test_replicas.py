"""Replicas that the operator decides: they follow the load of real clients, and other autoscalers are respected.

One pipeline whose talkers may use little CPU for the whole file, so that a few clients are more than one can serve.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from cluster.client import wait_until
from cluster.installation import Installation
from cluster.listeners import Listeners
from cluster.pipeline import ANYWHERE, Pipeline, running
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import Peak, State

PIPELINE = "scaled"
MAX_TALKERS = 3
SLOW = {"resources": {"limits": {"cpu": "250m"}}}
SPEC = {
    "talker": {**SLOW, "autoscaling": {"maxReplicas": MAX_TALKERS}},
    "slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 1000}]},
    "tuning": {"intervalSeconds": 5},
    "monitoring": {"allowFrom": [ANYWHERE]},
}
FEW, MANY = 1, 6
"""Clients. A client requests one stream after the other."""
SCALES_UP = 600.0
"""The operator knows the engines' times after a minute, and judges how requests are served after some."""
SCALES_DOWN = 300.0
