"""Stages' metrics, made by their own code, without the stages."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from syrinx_operator.cluster.state import Component, Replica
from syrinx_stages.contract import metrics as contract
from syrinx_stages.runtime.metrics import Metrics, rows_label

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


class Worker:
    """What a talker or codec pod exports after what a test lets happen."""

    def __init__(self, name: str, stage: str) -> None:
        component = Component(stage)
        self.replica = Replica(name=name, component=component, template="t", ready=True, address="10.0.0.2")
        self.stage = stage
        self.restart()

    def restart(self) -> None:
        self.metrics = Metrics(CollectorRegistry())
        for family in contract.BY_STAGE[self.stage]:
            self.metrics[family]
        self.metrics[contract.MAX_NUM_SEQS].labels(self.stage).set(8)
        self.metrics[contract.INFO].labels("0.1.0", "cpu").set(1)

    def steps(self, rows: int, *seconds: float) -> None:
        """Engine steps of one size, each a frame for every row."""
        for value in seconds:
            self.metrics[contract.STEP_SECONDS].labels(self.stage, rows_label(rows)).observe(value)
            self.metrics[contract.FRAMES].labels(self.stage).inc(rows)

    def calls(self, rows: int, frames: int, result: str, *seconds: float) -> None:
        """Decoder calls of one wanted shape."""
        for value in seconds:
            self.metrics[contract.CODEC_CALLS].labels(rows, frames, result).inc()
            self.metrics[contract.CODEC_CALL_SECONDS].labels(rows, frames, result).inc(value)

    def captured(self, rows: int, frames: int, seconds: float, size: int) -> None:
        """A shape, and what it cost."""
        self.metrics[contract.CAPTURE_SECONDS].labels(rows, frames).set(seconds)
        self.metrics[contract.CAPTURE_BYTES].labels(rows, frames).set(size)

    def ends(self, reason: str, requests: int = 1) -> None:
        self.metrics[contract.REQUESTS_FINISHED].labels(self.stage, reason).inc(requests)

    @property
    def text(self) -> str:
        return generate_latest(self.metrics.registry).decode()
