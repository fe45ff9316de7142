"""The simulated processes: the real services, with real metrics and with engines that take a machine's times."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from simulator.engines import Device, TimedCodecEngine, TimedTalkerEngine
from simulator.scenario import Scenario
from support.simulation import processes
from support.simulation.loop import Process
from support.simulation.processes import Cluster, Gateway, Replica
from syrinx_operator.resource.knobs import live_settings
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, StageConfig, TalkerSettings
from syrinx_stages.contract.stages import Stage
from syrinx_stages.normalization.reading import Reading
from syrinx_stages.runtime.settings import LiveSettings, SettingsUpdate
from syrinx_stages.runtime.telemetry.exposition import Exposition
from syrinx_stages.runtime.telemetry.metrics import Metrics
from syrinx_stages.talker.service import TalkerService


class Counted(Replica):  # type: ignore[misc]
    """A replica with real metrics, which a new process starts from zero."""

    config: StageConfig
    exposition: Exposition
    restarts_seen = -1

    def metrics(self) -> Metrics:
        """Returns the metrics of a new process."""
        metrics = Metrics(CollectorRegistry())
        self.exposition = Exposition(metrics)
        self.restarts_seen += 1
        return metrics

    def put(self, stage: Stage, base: Mapping[str, Any], temporary: Mapping[str, Any]) -> None:
        """Applies settings, as the operator does. A process that starts later begins with the base."""
        known = msgspec.to_builtins(self.config)
        config = msgspec.convert(known | {stage.value: known[stage] | base}, StageConfig)
        is_changed, self.config = config != self.config, config
        if self.service is None or not self.process.alive:
            return
        live = self.service.live
        with self.cluster.loop.within(self.process):
            if is_changed or (not temporary and live.seconds_left is not None):
                live.apply(SettingsUpdate(dict(base)))
            if temporary:
                live.apply(SettingsUpdate(dict(temporary), seconds=OVERRIDE_TTL_SECONDS))
            self.service.settings_changed()


class CountedGateway(Counted, Gateway):  # type: ignore[misc]
    """A gateway."""


class Worker(Counted):
    """A talker or a codec on a device."""

    def __init__(
        self, cluster: Cluster, name: str, config: StageConfig, device: Device, clock: Callable[[], float]
    ) -> None:
        """`clock` returns the seconds of the scenario."""
        super().__init__(cluster, name, config)
        self._device, self._clock = device, clock
        self.came_at = clock()
        self.left_at: float | None = None

    async def end_responses(self) -> None:
        """A worker sends none."""

    def leave(self) -> None:
        """Finishes its requests, and ends for good."""
        self.restarts = False
        if self.process.alive and self.service is not None:
            self.terminate()
        else:
            self.left_at = self._clock()

    def _on_end(self, process: Process) -> None:
        super()._on_end(process)
        if not self.restarts:
            self.left_at = self._clock()

    def _live(self, settings: Any) -> LiveSettings[Any]:
        return LiveSettings(settings, self.config.settings_generation, self.config.max_resident, self.cluster.loop.time)


class TimedTalker(Worker):
    """A talker whose engine takes a machine's times."""

    stage = Stage.TALKER

    def build(self, connector: RedisConnector, metrics: Metrics) -> TalkerService:
        """Creates the service."""
        config, engine = self.config, TimedTalkerEngine(self._device)
        live = self._live(config.talker)
        loaded: Any = engine, Reading()
        return TalkerService(connector, lambda: loaded, self.name, config.max_resident, live, metrics)


class TimedCodec(Worker):
    """A codec whose engine takes a machine's times."""

    stage = Stage.CODEC

    def build(self, connector: RedisConnector, metrics: Metrics) -> CodecService:
        """Creates the service."""
        config, engine = self.config, TimedCodecEngine(self._device)
        return CodecService(
            connector, lambda: engine, self.name, config.max_resident, self._live(config.codec), metrics
        )


def config_of(scenario: Scenario) -> StageConfig:
    """Returns the configuration of a process."""
    setting = scenario.initial
    return StageConfig(
        pipeline=processes.KEYS.pipeline,
        generation=processes.KEYS.generation,
        model="bundled",
        max_resident=scenario.resident,
        talker=TalkerSettings(max_num_seqs=min(setting.talker_max_num_seqs, scenario.resident)),
        codec=msgspec.convert(live_settings(setting, Stage.CODEC), CodecSettings),
        gateway=GatewaySettings(
            max_queue_seconds=scenario.max_queue_seconds,
            ttfa_seconds={scenario.task_type: scenario.objective.seconds},
        ),
    )
