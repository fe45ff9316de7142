"""Talker and codec in one process: two services on one event loop, each with its engine's thread and its settings."""

from __future__ import annotations

import asyncio
from typing import Any

from syrinx_stages.codec import service as codec_service
from syrinx_stages.codec.service import CodecService
from syrinx_stages.colocated.claims import SharedClaimOwner
from syrinx_stages.colocated.connectors import CodecConnector, TalkerConnector
from syrinx_stages.connector.base import StageConnector
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.worker import Worker
from syrinx_stages.talker import service as talker_service
from syrinx_stages.talker.service import TalkerService


class ColocatedStage:
    """One of the two stages, as its admin port shows it: ready only when both are."""

    def __init__(self, worker: Worker[Any, Any, Any], other: Worker[Any, Any, Any]) -> None:
        self._worker = worker
        self._other = other

    @property
    def live(self) -> LiveSettings[Any]:
        """Its own settings."""
        return self._worker.live

    def ready(self) -> str | None:
        """Why this stage is not ready, or else the other."""
        other = self._other.ready()
        return self._worker.ready() or (f"{self._other.stage}: {other}" if other else None)

    def settings_changed(self) -> None:
        """This stage looks again."""
        self._worker.settings_changed()


class ColocatedService:
    """One talker and one codec replica."""

    def __init__(self, leader: SharedClaimOwner, talker: TalkerService, codec: CodecService) -> None:
        self.talker = ColocatedStage(talker, codec)
        self.codec = ColocatedStage(codec, talker)
        self.workers = (talker, codec)
        leader.bind(talker.evict, codec.evict)
        codec.share_failure_with(talker)
        self.failed = talker.failed

    async def start(self) -> None:
        """The codec first: once the talker claims, both are at work; and they warm up one after the other."""
        for worker in reversed(self.workers):
            await worker.start()

    async def drain(self, seconds: float) -> None:
        """The talker claims nothing more; both finish what they own, within `seconds`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        for worker in self.workers:
            await worker.drain(max(0.0, end - loop.time()))

    async def close(self) -> None:
        """Both stop before either hands anything over: the successor of one is that of the other."""
        for worker in self.workers:
            await worker.stop()
        for worker in reversed(self.workers):
            await worker.close()


def build(
    talker: StageConfig,
    talker_connector: StageConnector,
    codec: StageConfig,
    codec_connector: StageConnector,
    metrics: Metrics,
) -> ColocatedService:
    """Both stages of a process, each by its own configuration. Raises `StartError` if these do not go together."""
    for field in ("pipeline", "generation", "model", "device", "drain_seconds"):
        one, other = getattr(talker, field), getattr(codec, field)
        if one != other:
            raise StartError(f"{field}: {one!r} of the talker and {other!r} of the codec cannot share a process")
    side = TalkerConnector(talker_connector)
    first, _ = talker_service.build(talker, side, metrics)
    second, _ = codec_service.build(codec, CodecConnector(codec_connector, side), metrics)
    return ColocatedService(side.leader, first, second)
