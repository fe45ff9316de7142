"""The stages' metrics from the stages' own metric definitions, without running stages."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from syrinx_operator.cluster.objects.state import Replica, component_of
from syrinx_stages.contract import metrics as contract
from syrinx_stages.runtime.telemetry.metrics import Metrics, rows_label


class Pod:
    """The metrics of a stage's pod after simulated events."""

    def __init__(self, name: str, stage: str, address: str) -> None:
        self.replica = Replica(name=name, component=component_of(stage), template="t", ready=True, address=address)
        self.stage = stage
        self.restart()

    def restart(self) -> None:
        self.metrics = Metrics(CollectorRegistry())
        for family in contract.BY_STAGE[self.stage]:
            self.metrics[family]

    @property
    def text(self) -> str:
        return generate_latest(self.metrics.registry).decode()


class Gateway(Pod):
    """The metrics of a gateway."""

    def __init__(self, name: str = "demo-gateway-5f-0") -> None:
        super().__init__(name, "gateway", "10.0.0.1")

    def serve(self, *seconds: float, task_type: str = "CustomVoice", underruns: int = 0) -> None:
        """Records completed live requests with these TTFAs in seconds."""
        for value in seconds:
            self.metrics[contract.FIRST_BYTE].labels(task_type).observe(value)
            self.metrics[contract.TTFA].labels(task_type).observe(value)
        self.metrics[contract.UNDERRUNS].labels(task_type).inc(underruns)

    def settle(self, arm: str = "", task_type: str = "CustomVoice", accepted: int = 0, **outcomes: int) -> None:
        """Records accepted streams, and the outcomes of some."""
        self.metrics[contract.STREAMS_ACCEPTED].labels(task_type, arm).inc(accepted)
        for outcome, count in outcomes.items():
            self.metrics[contract.STREAM_OUTCOMES].labels(task_type, arm, outcome).inc(count)

    def live(self, streams: int) -> None:
        self.metrics[contract.LIVE_STREAMS].set(streams)


class Worker(Pod):
    """The metrics of a talker or codec."""

    def __init__(self, name: str, stage: str) -> None:
        super().__init__(name, stage, "10.0.0.2")

    def restart(self) -> None:
        super().restart()
        self.metrics[contract.MAX_NUM_SEQS].labels(self.stage).set(8)
        self.metrics[contract.INFO].labels("0.1.0", "cpu").set(1)

    def steps(self, rows: int, *seconds: float) -> None:
        """Records engine steps with `rows` rows, each with one frame per row."""
        for value in seconds:
            self.metrics[contract.STEP_SECONDS].labels(self.stage, rows_label(rows)).observe(value)
            self.metrics[contract.FRAMES].labels(self.stage).inc(rows)

    def prepares(self, task_type: str, *seconds: float) -> None:
        """Records prompts of a task type."""
        for value in seconds:
            self.metrics[contract.PREPARE_SECONDS].labels(task_type).observe(value)

    def prefills(self, *seconds: float) -> None:
        """Records prefills of requests."""
        for value in seconds:
            self.metrics[contract.PREFILL_SECONDS].labels(self.stage).observe(value)

    def calls(self, rows: int, frames: int, result: str, *seconds: float) -> None:
        """Records decoder calls with one requested shape."""
        for value in seconds:
            self.metrics[contract.CODEC_CALLS].labels(rows, frames, result).inc()
            self.metrics[contract.CODEC_CALL_SECONDS].labels(rows, frames, result).inc(value)

    def captured(self, rows: int, frames: int, seconds: float, size: int) -> None:
        """Records the capture of a shape: seconds and bytes."""
        self.metrics[contract.CAPTURE_SECONDS].labels(rows, frames).set(seconds)
        self.metrics[contract.CAPTURE_BYTES].labels(rows, frames).set(size)
