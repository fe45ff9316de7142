"""A gateway's metrics, made by its own code, without the gateway."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from syrinx_operator.cluster.state import Component, Replica
from syrinx_stages.contract import metrics as contract
from syrinx_stages.runtime.metrics import Metrics

SERVED = {"talker": "demo-talker-0", "codec": "demo-codec-0"}


class Gateway:
    """What a gateway pod exports after what a test lets happen."""

    def __init__(self, name: str = "demo-gateway-5f-0") -> None:
        self.replica = Replica(name=name, component=Component.GATEWAY, template="t", ready=True, address="10.0.0.1")
        self.restart()

    def restart(self) -> None:
        self.metrics = Metrics(CollectorRegistry())
        for family in contract.BY_STAGE["gateway"]:
            self.metrics[family]

    def hears(self, *seconds: float, task_type: str = "CustomVoice", underruns: int = 0, **served: str) -> None:
        """Live requests that begin, are heard after so many seconds, and end."""
        labels = {"task_type": task_type, **SERVED, **served}
        for value in seconds:
            self.metrics[contract.FIRST_BYTE].labels(**labels).observe(value)
            self.metrics[contract.TTFA].labels(**labels).observe(value)
        self.metrics[contract.UNDERRUNS].labels(**labels).inc(underruns)

    def live(self, streams: int) -> None:
        self.metrics[contract.LIVE_STREAMS].set(streams)

    @property
    def text(self) -> str:
        return generate_latest(self.metrics.registry).decode()
